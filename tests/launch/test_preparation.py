"""The files of a federation on one machine: for its user alone, and written through no link."""

import socket
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from cfel.deployment.transport.addresses import split_address
from cfel.errors import StorageError
from cfel.experiment import load_experiment
from cfel.launch.federation import prepare_nodes
from cfel.launch.node import read_node

TINY = Path(__file__).parents[2] / "examples" / "tiny.toml"


def prepare(out: Path) -> list[Path]:
    experiment = load_experiment(TINY)
    return prepare_nodes(experiment, experiment.build_world(), out, ())


def test_what_nodes_keep_is_private(tmp_path: Path) -> None:
    files = prepare(tmp_path)
    modes = {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("nodes", "certificates")}
    assert modes == {"nodes": 0o700, "certificates": 0o700}
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as trial:
            trial.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="needs ::1")
def test_ipv6(tmp_path: Path) -> None:
    """Addresses have brackets, and dashboards are on the loopback address of the same kind."""
    experiment = load_experiment(TINY)
    experiment = replace(experiment, deployment=replace(experiment.deployment, host="::1"))
    files = prepare_nodes(experiment, experiment.build_world(), tmp_path, ())
    edge = read_node(files[0])
    assert len(edge.node.addresses) == 3
    for address in (*edge.node.addresses, edge.dashboard):
        host, port = split_address("address", address)
        assert host == "::1"
        assert port > 0


@pytest.mark.parametrize("name", ["nodes", "certificates", "nodes/edge-1", "nodes/device-0"])
def test_a_linked_directory_is_rejected(tmp_path: Path, name: str) -> None:
    """As in a directory that somebody else sent, and that is resumed."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run" / name).parent.mkdir(parents=True)
    (tmp_path / "run" / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match=f"{name} is a link, which is not followed"):
        prepare(tmp_path / "run")
    assert list((tmp_path / "elsewhere").iterdir()) == []
