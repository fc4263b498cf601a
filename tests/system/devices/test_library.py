"""The library: no figure without an origin, no citation without a source."""

import re
import tomllib
from importlib.resources import files

import pytest

from cfel.errors import InputError
from cfel.system.device_classes import (
    FIGURES,
    ClassFile,
    DescribedClass,
    class_file_toml,
    parse_class_file,
    read_library,
)

LIBRARY = read_library()
BOARD = {"flops_per_second": 1e9, "compute_watts": 5, "radio_watts": 1, "uplink_bits_per_second": 1e6}


@pytest.mark.parametrize("each", LIBRARY.classes, ids=lambda each: str(each.device.name))
def test_every_figure_says_where_it_comes_from(each: DescribedClass) -> None:
    assert set(each.how) == set(FIGURES)
    for figure, text in each.how.items():
        cited = re.findall(r"\[([\w-]+)\]", text)
        assert cited, figure
        assert set(cited) <= set(LIBRARY.sources), figure


def test_every_source_is_cited_and_every_figure_is_in_the_file() -> None:
    """A figure left out would silently be the default of `DeviceClass`."""
    text = files("cfel.system").joinpath("device_library.toml").read_text(encoding="utf-8")
    assert [key for key in LIBRARY.sources if f"[{key}]" not in text] == []
    tables = tomllib.loads(text)["classes"]
    assert [name for name, table in tables.items() if not set(FIGURES) <= set(table)] == []


def test_arithmetic_in_the_file_holds() -> None:
    """The figures that are products of others: recomputed here from the numbers that the file quotes."""
    found = {each.device.name: each.device for each in LIBRARY.classes}
    assert found["raspberry-pi-5"].flops_per_second == pytest.approx(2 * 35.169e9, rel=1e-3)
    assert found["raspberry-pi-4"].flops_per_second == pytest.approx(2 * 11.889e9, rel=1e-2)
    assert found["x86-mini-pc"].flops_per_second == pytest.approx(2 * 62.067e9, rel=1e-3)
    assert found["jetson-nano"].flops_per_second == pytest.approx(0.5 * 128 * 921.6e6 * 2, rel=1e-2)
    assert found["jetson-orin-nano"].flops_per_second == 0.5 * 1024 * 625e6 * 2
    assert found["raspberry-pi-5"].radio_watts == pytest.approx(3.3 * 0.2529, rel=1e-2)
    assert found["pixel-6"].battery_joules == pytest.approx(4.614 * 3.7 * 3600, rel=1e-3)
    assert pytest.approx(1.17, abs=0.01) == (1.70 / 1870) / (2.33 / 3009)
    pixels = [device for name, device in found.items() if name.startswith("pixel")]
    assert sum(each.compute_watts for each in pixels) / 4 == pytest.approx(4.04, abs=0.01)
    assert sum(each.radio_watts for each in pixels) / 4 == pytest.approx(0.96, abs=0.01)


def test_what_is_written_reads_the_same() -> None:
    again = parse_class_file(tomllib.loads(class_file_toml(LIBRARY)), "again")
    assert again == ClassFile(LIBRARY.classes, LIBRARY.sources)


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ({}, "mine.toml: classes = None:"),
        ({"class": {}}, "mine.toml: top level: unknown 'class'"),
        ({"classes": {"board": 5}}, "mine.toml: classes.board = 5:"),
        ({"classes": {"board": {"compute_watts": 5}}}, "classes.board.flops_per_second: is missing"),
        ({"classes": {"board": {**BOARD, "watts": 5}}}, "classes.board: unknown 'watts'"),
        ({"classes": {"board": {**BOARD, "radio_watts": -1}}}, "device class 'board'.radio_watts = -1"),
        ({"classes": {"board": {**BOARD, "battery_joules": 0}}}, "device class 'board'.battery_joules = 0"),
        ({"classes": {"board": {**BOARD, "radio_watts_how": 3}}}, "classes.board.radio_watts_how = 3"),
        ({"classes": {"board": BOARD}, "sources": {"a": 1}}, "mine.toml: sources.a = 1: must be text"),
    ],
)
def test_a_bad_file_is_rejected_by_its_place(document: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError, match=re.escape(reason)):
        parse_class_file(document, "mine.toml")
