"""Power profiles of phones: what is read from them, and files that are wrong or hostile."""

import re
from pathlib import Path

import pytest

from cfel.errors import FleetFileError
from cfel.system.device_classes import MAX_BYTES, CpuCluster, read_power_profile

PROFILE = """<?xml version="1.0" encoding="utf-8"?>
<device name="Android">
  <!-- a comment -->
  <item name="battery.capacity">3000</item>
  <array name="cpu.clusters.cores"><value>4</value><value>2</value></array>
  <item name="cpu.active">10</item>
  <item name="cpu.cluster_power.cluster1">5</item>
  <array name="cpu.core_speeds.cluster0"><value>500000</value><value>1000000</value></array>
  <array name="cpu.core_power.cluster0"><value>8</value><value>20</value></array>
  <array name="cpu.core_speeds.cluster1"><value>1000000</value><value>2000000</value></array>
  <array name="cpu.core_power.cluster1"><value>50</value><value>200</value></array>
  <array name="modem.controller.tx"><value>100</value><value>201</value><value>300</value></array>
  <item name="wifi.controller.tx">250</item>
  <item name="modem.controller.voltage">4000</item>
  <modem><active rat="LTE"><transmit level="0">1</transmit></active></modem>
</device>
"""
OLD = """<device>
  <array name="cpu.clusters.cores"><value>2</value></array>
  <array name="cpu.speeds"><value>300000</value><value>600000</value></array>
  <array name="cpu.active"><value>40</value><value>90</value></array>
  <item name="radio.active">180</item>
  <item name="wifi.active">0</item>
</device>"""


def write(folder: Path, text: str) -> Path:
    path = folder / "power_profile.xml"
    path.write_text(text, encoding="utf-8")
    return path


def test_reads_clusters_radios_and_battery(tmp_path: Path) -> None:
    found = read_power_profile(write(tmp_path, PROFILE))
    assert found.clusters == (
        CpuCluster(4, (5e5, 1e6), (8, 20), 0.0),
        CpuCluster(2, (1e6, 2e6), (50, 200), 5.0),
    )
    assert (found.active_milliamps, found.cellular_milliamps, found.wifi_milliamps) == (10, 201, 250)
    assert (found.battery_milliamp_hours, found.volts) == (3000, 4.0)


def test_reads_the_names_of_older_androids(tmp_path: Path) -> None:
    """`cpu.active` is then a list per speed, with nothing shared; a zero means that nothing was measured."""
    found = read_power_profile(write(tmp_path, OLD))
    assert found.clusters == (CpuCluster(2, (3e5, 6e5), (40, 90), 0.0),)
    assert (found.active_milliamps, found.cellular_milliamps, found.wifi_milliamps) == (0, 180, None)
    assert (found.battery_milliamp_hours, found.volts) == (None, None)


BOMB = '<!DOCTYPE a [<!ENTITY b "bbbb"><!ENTITY c "&b;&b;&b;">]>\n<device>&c;</device>'
OUTSIDE = '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/hostname">]>\n<device>&b;</device>'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (BOMB, ", line 1: has a document type"),
        (OUTSIDE, ", line 1: has a document type"),
        ("<device>\n<item>", ", line 2: is not XML: no element found"),
        ("not xml", ", line 1: is not XML: syntax error"),
        ("<a>" * 20, ", line 1: has more than 16 "),
        (PROFILE.replace("3000", "many"), ", line 4: 'battery.capacity': 'many': must be a number ≥ 0"),
        (PROFILE.replace("3000", "nan"), ", line 4: 'battery.capacity': 'nan':"),
        (PROFILE.replace("3000", "1e999"), ", line 4: 'battery.capacity': '1e999':"),
        (PROFILE.replace("<value>8</value>", ""), ", line 9: cluster 0 has 1 currents for 2 speeds"),
        (PROFILE.replace(">500000<", ">1000001<"), ", line 8: the speeds of cluster 0 must rise"),
        (PROFILE.replace(">4<", ">4.5<"), ", line 5: 'cpu.clusters.cores': 4.5: must be a whole number"),
        (PROFILE.replace(">200<", ">0.1<"), ", line 11: cluster 1: 0.1 mA"),
        (PROFILE.replace("cpu.clusters.cores", "x"), ": 'cpu.clusters.cores' is missing"),
        (PROFILE.replace("cpu.core_speeds.cluster1", "x"), ": 'cpu.core_speeds.cluster1' is missing"),
        (PROFILE.replace("cpu.active", "battery.capacity"), ", line 6: 'battery.capacity' occurs twice"),
    ],
)
def test_a_bad_profile_is_rejected_by_line_and_value(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(FleetFileError, match=re.escape("power_profile.xml" + reason)):
        read_power_profile(write(tmp_path, text))


def test_a_missing_or_huge_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(FleetFileError, match=r"none\.xml"):
        read_power_profile(tmp_path / "none.xml")
    with pytest.raises(FleetFileError, match="at most 1,048,576 are allowed"):
        read_power_profile(write(tmp_path, " " * (MAX_BYTES + 1)))


@pytest.mark.parametrize("encoding", ["rot13", "hex", "base64", "shift_jis", "idna", "nobody-knows", "utf-7"])
def test_other_encodings_are_rejected(tmp_path: Path, encoding: str) -> None:
    """Python would look for a codec of this name, and fail in its own words."""
    with pytest.raises(FleetFileError, match=f"line 1: encoding '{encoding}': must be one of utf-8"):
        read_power_profile(write(tmp_path, PROFILE.replace("utf-8", encoding)))
