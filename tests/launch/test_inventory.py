"""Fleets that are set up in advance."""

from pathlib import Path

import pytest

from cfel.deployment.security.identity import Identity
from cfel.errors import ExperimentError, InputError
from cfel.launch.machine import pack_hosts, read_inventory, unpack

INVENTORY = """
experiment = "experiment.toml"

[hosts.gateway-1]
address = "10.0.0.1"
nodes = ["edge-0", "device-0"]

[hosts.gateway-2]
address = "10.0.0.2:80"
nodes = ["edge-1"]

[hosts.phone]
nodes = ["device-1"]
"""
EXPERIMENT = 'preset = "demo"\n[fleet]\ndevices = 2\nclusters = 2\n'


def write(folder: Path, inventory: str = INVENTORY) -> Path:
    (folder / "experiment.toml").write_text(EXPERIMENT)
    (folder / "inventory.toml").write_text(inventory)
    return folder / "inventory.toml"


def test_one_archive_per_host(tmp_path: Path) -> None:
    archives = pack_hosts(read_inventory(write(tmp_path)), tmp_path / "out")
    assert [path.name for path in archives] == ["gateway-1.tar.gz", "gateway-2.tar.gz", "phone.tar.gz"]
    nodes = [[str(setup.identity) for setup in unpack(path)] for path in archives]
    assert nodes == [["device-0", "edge-0"], ["edge-1"], ["device-1"]]
    (phone,) = unpack(archives[2])
    assert phone.kit.addresses == ("10.0.0.1:7400", "10.0.0.2:80")
    # Keys are in the archives and nowhere else, but for the authority's and the operator's.
    keys = sorted(path.name for path in (tmp_path / "out" / "certificates").glob("*.key"))
    assert keys == ["authority.key", "operator-0.key"]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[hosts.phone]", "[host.phone]", "top level: unknown 'host'; did you mean 'hosts'"),
        ('experiment = "experiment.toml"', "", "experiment is missing"),
        ('nodes = ["edge-1"]', "node = 1", r"\[hosts.gateway-2\]: unknown 'node'; did you mean 'nodes'"),
        ('nodes = ["edge-1"]', 'nodes = ["edge"]', "'edge': must look like edge-0"),
        ('address = "10.0.0.1"', "", r"hosts.gateway-1.address is missing: others must reach edge-0"),
        ('["edge-1"]', '["edge-1", "device-0"]', "hosts: device-0 is listed twice"),
        ('["edge-1"]', '["edge-2"]', r"hosts: edge servers \[0, 2\], their numbers must be 0, 1, 2"),
        ('["edge-1"]', '["edge-1", "edge-2"]', "2 edge servers; list each in a host of its own"),
    ],
)
def test_a_wrong_inventory_is_named(tmp_path: Path, old: str, new: str, words: str) -> None:
    with pytest.raises(ExperimentError, match=words):
        read_inventory(write(tmp_path, INVENTORY.replace(old, new)))


@pytest.mark.parametrize(
    ("nodes", "words"),
    [("[]", "hosts: device-1 is missing"), ('["device-1", "device-7"]', "device-7 is not in the experiment")],
)
def test_all_nodes_are_listed(tmp_path: Path, nodes: str, words: str) -> None:
    inventory = read_inventory(write(tmp_path, INVENTORY.replace('["device-1"]', nodes)))
    with pytest.raises(InputError, match=words):
        pack_hosts(inventory, tmp_path / "out")


def test_nodes_of_a_host(tmp_path: Path) -> None:
    hosts = read_inventory(write(tmp_path)).hosts
    assert hosts["gateway-1"] == (Identity("edge", 0), Identity("device", 0))
