"""`cfel up`, `cfel certs`, `cfel status`, `cfel edge` and `cfel device`, as far as they do not wait."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cfel.cli import federation
from cfel.cli import node as node_command
from cfel.deployment.node import Node
from cfel.deployment.security.certificates import is_revoked
from cfel.deployment.security.identity import Identity
from cfel.errors import SilentEdgeServerError
from cfel.launch.node import NodeFile, read_node, write_node
from cfel.status import ClusterStatus, DeviceStatus, RoundPoint, Status
from tests.cli.conftest import Answer, Run, Write

EXAMPLE = Path(__file__).parents[2] / "examples" / "tiny.toml"


@pytest.mark.long
@pytest.mark.usefixtures("no_figures")
@pytest.mark.timeout(240)
def test_up_and_status(run: Run, tmp_path: Path) -> None:
    """A whole federation, no second run over it, and the silence afterwards."""
    out = tmp_path / "run"
    short = ("--set", "rounds.global=1", "--set", "deployment.election_seconds=1.5", "--json")
    answer = run("up", EXAMPLE, "--out", out, *short)
    assert answer.code == 0, answer.err
    assert answer.document["rounds"] == 1
    assert (out / "report.html").exists()
    exported = run("export", out, "--to", tmp_path / "model.safetensors")
    assert exported.code == 0, exported.err
    # A single edge server's directory is as good, as on a real host there is no other.
    own = run("export", out / "nodes" / "edge-1", "--to", tmp_path / "own.safetensors")
    assert (own.code, "model of this edge server after global round 1" in own.out) == (0, True), own.err
    shutil.rmtree(out / "checkpoint")
    assert run("export", out, "--to", tmp_path / "same.safetensors", "--edge", 1).code == 0
    assert (tmp_path / "same.safetensors").read_bytes() == (tmp_path / "own.safetensors").read_bytes()
    assert run("report", out / "nodes" / "edge-1").code == 0
    assert run("up", EXAMPLE, "--out", out).code == 1
    status = run("status", out, "--json")
    assert status.code == 1
    assert [edge["alive"] for edge in status.document["edges"]] == [False] * 3
    resumed = run("run", EXAMPLE, "--out", out, "--resume", "--set", "rounds.global=1")
    assert (resumed.code, "deployment's" in resumed.err) == (1, True)


def test_up_on_another_machine(run: Run, tmp_path: Path) -> None:
    answer = run("up", EXAMPLE, "--out", tmp_path / "run", "--set", "deployment.host=192.0.2.7")
    assert (answer.code, "deployment.host = '192.0.2.7'" in answer.err) == (2, True), answer.err
    assert not (tmp_path / "run").exists()


def test_certs(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "certificates"
    assert run("certs", "--out", out, "--edges", 2, "--devices", 1).code == 0
    made = {path.name for path in out.iterdir()}
    members = ("authority", "edge-0", "edge-1", "device-0", "operator-0")
    assert made == {f"{member}.{kind}" for member in members for kind in ("pem", "key")}
    before = (out / "device-0.pem").read_bytes()
    assert run("certs", "--out", out, "--renew", "device-0").code == 0
    assert (out / "device-0.pem").read_bytes() != before
    assert run("certs", "--out", out, "--revoke", "device-0").code == 0
    assert len((out / "revoked.txt").read_text().split()) == 1
    wrong = run("certs", "--out", out, "--renew", "gateway-0")
    assert (wrong.code, "'gateway-0': must look like edge-0" in wrong.err) == (2, True)


def test_certs_that_exist_are_left_alone(run: Run, tmp_path: Path) -> None:
    assert run("certs", "--out", tmp_path, "--edges", 1, "--devices", 1).code == 0
    # Its key belongs on the device, and need not stay here.
    (tmp_path / "device-0.key").unlink()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    again = run("certs", "--out", tmp_path, "--edges", 1, "--devices", 2)
    assert again.code == 0
    assert "1 certificate issued (3 already there, use --renew to replace), 0 revoked" in again.out
    assert {name for name, content in before.items() if (tmp_path / name).read_bytes() != content} == set()
    assert (tmp_path / "device-1.pem").exists()
    assert run("certs", "--out", tmp_path, "--revoke", "device-0").code == 0


@pytest.mark.parametrize("option", ["--renew", "--revoke"])
def test_renewing_and_revoking_make_nothing_new(run: Run, tmp_path: Path, option: str) -> None:
    out = tmp_path / "certificates"
    rejected = run("certs", "--out", out, option, "device-0")
    assert (rejected.code, out.exists()) == (1, False)
    assert "holds no certificate authority" in rejected.err
    assert run("certs", "--out", out, "--devices", 1).code == 0
    before = sorted(out.iterdir())
    rejected = run("certs", "--out", out, option, "device-9")
    assert (rejected.code, sorted(out.iterdir())) == (2, before)
    assert "device-9: " in rejected.err


def test_who_is_revoked_and_renewed_at_once_has_a_good_certificate(run: Run, tmp_path: Path) -> None:
    assert run("certs", "--out", tmp_path, "--devices", 1).code == 0
    assert run("certs", "--out", tmp_path, "--renew", "device-0", "--revoke", "device-0").code == 0
    assert (tmp_path / "revoked.txt").exists()
    assert not is_revoked(tmp_path, Identity("device", 0))


@pytest.mark.parametrize("hours", ["inf", "0", "1e9", "a"])
def test_lifetimes_that_cannot_be(run: Run, tmp_path: Path, hours: str) -> None:
    rejected = run("certs", "--out", tmp_path / "c", "--devices", 1, "--hours", hours)
    assert (rejected.code, (tmp_path / "c").exists()) == (2, False)
    assert f"argument --hours: '{hours}': must be a number" in rejected.err


def test_node_files(tmp_path: Path) -> None:
    node = Node(Identity("edge", 1), ("a:1", "b:2"), tmp_path / "edge-1", tmp_path / "keys", "0.0.0.0:2")
    file = NodeFile(node, tmp_path / "experiment.toml", (tmp_path,))
    write_node(tmp_path / "edge-1.toml", file)
    assert read_node(tmp_path / "edge-1.toml") == file


GOOD = {
    "role": '"edge"',
    "number": "0",
    "addresses": '["10.0.0.1:7400"]',
    "directory": '"a"',
    "certificates": '"b"',
    "experiment": '"c"',
}


def node_toml(**changed: str | None) -> str:
    """A node's file with some keys changed, or left out."""
    return "\n".join(f"{key} = {value}" for key, value in (GOOD | changed).items() if value is not None)


@pytest.mark.parametrize("key", GOOD)
def test_missing_keys_of_node_files(run: Run, write: Write, key: str) -> None:
    answer = run("edge", "--config", write("node.toml", node_toml(**{key: None})))
    assert (answer.code, f"{key} is missing" in answer.err) == (2, True), answer.err


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("port", "3", "unknown 'port'"),
        ("role", '"server"', "unknown 'server'"),
        ("role", "", "cannot be used"),
        ("number", '"0"', "number = '0': must be a whole number"),
        ("number", "true", "number = True: must be a whole number"),
        ("number", "-1", "number = -1"),
        ("directory", "5", "directory = 5: must be text"),
        ("certificates", "[]", "certificates = []: must be text"),
        ("experiment", "1.5", "experiment = 1.5: must be text"),
        ("listen", "7400", "listen = 7400: must be a host and a port"),
        ("listen", '"0.0.0.0"', "listen = '0.0.0.0': must be a host and a port"),
        ("dashboard", '"127.0.0.1:99999"', "dashboard = '127.0.0.1:99999': must be a host and a port"),
        ("addresses", '"10.0.0.1:7400"', "addresses = '10.0.0.1:7400': must be a list"),
        ("addresses", '["10.0.0.1"]', "addresses = '10.0.0.1': must be a host and a port"),
        ("addresses", "[7400]", "addresses = 7400: must be text"),
        ("addresses", "[]", "addresses = []: must name all edge servers"),
        ("import_from", '"."', "import_from = '.': must be a list"),
        ("data", "3", "data = 3: must be text"),
        ("data_path", "3", "data_path = 3: must be text"),
    ],
)
def test_wrong_node_files(run: Run, write: Write, key: str, value: str, reason: str) -> None:
    answer = run("edge", "--config", write("node.toml", node_toml(**{key: value})))
    assert (answer.code, reason in answer.err) == (2, True), answer.err
    assert str(write("node.toml", "")) in answer.err


def test_a_devices_file_is_not_for_an_edge_server(run: Run, write: Write) -> None:
    answer = run("edge", "--config", write("node.toml", node_toml(role='"device"')))
    assert (answer.code, "configures device-0" in answer.err) == (2, True)


def test_a_device_that_missed_the_end_says_so(
    run: Run, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 4, which a supervisor can tell from a failure."""

    def give_up(_: Path) -> bool:
        raise SilentEdgeServerError("edge-0 has not answered for 3601 s: the experiment is probably over")

    monkeypatch.setattr(node_command, "run_node", give_up)
    answer = run("device", "--config", write("node.toml", node_toml(role='"device"')))
    assert (answer.code, answer.err) == (
        4,
        "ended: edge-0 has not answered for 3601 s: the experiment is probably over\n",
    )


def test_status_of_nothing(run: Run, tmp_path: Path) -> None:
    assert run("status", tmp_path).code == 2


SILENCE = (
    "edge-1, status: failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:7400: "
    "Failed to connect to remote host: Connection refused"
)
WHY = "edge 1: ipv4:127.0.0.1:7400: Failed to connect to remote host: Connection refused"


@pytest.fixture
def asked(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Answer]:
    """`cfel status` of two edge servers that say something."""
    path = tmp_path / "operator-0.toml"
    write_node(path, NodeFile(Node(Identity("operator", 0), ("a:1", "b:2"), tmp_path, tmp_path), path))

    def ask(*answers: Status | str) -> Answer:
        async def answer(_: Node) -> dict[int, Status | str]:
            return dict(enumerate(answers))

        monkeypatch.setattr(federation, "ask_status", answer)
        return run("status", path)

    return ask


def test_status_says_what_is_wrong(asked: Callable[..., Answer]) -> None:
    """One edge server answers, and finds no majority; the other does not answer."""
    devices = tuple(DeviceStatus(device=n) for n in range(12))
    clusters = (ClusterStatus(cluster=0, size=12, devices=devices), ClusterStatus(cluster=1, state="lost"))
    history = (RoundPoint(round=123, seconds=1.0, joules=1.0, accuracy=0.987),)
    waiting = Status(
        node="edge-0",
        term=12,
        coordinator="edge-10",
        clusters=clusters,
        round=123,
        edge_round=1,
        phase="aggregating",
        seconds=12_345.0,
        joules=123_456.0,
        history=history,
        problem="no majority: 1 of 2",
    )
    answer = asked(waiting, SILENCE)
    assert answer.code == 1
    head, first, second, *below = [line.rstrip() for line in answer.out.splitlines()]
    assert head.split()[:3] == ["edge", "term", "coordinator"]
    assert first.split() == [
        *("0", "12", "edge-10", "123.1", "aggregating", "12/12", "0", "98.7", "%", "12,345", "123,456")
    ]
    assert second.split() == ["1", "no", "answer"]
    assert max(len(head), len(first)) <= 80
    standstill = "no majority: only 1 of 2 edge servers answered"
    assert below == ["edge 0: no majority: 1 of 2", WHY, standstill]


def test_the_exit_code_of_status(asked: Callable[..., Answer]) -> None:
    """0 while the federation can make progress or has finished, 1 without a majority or a coordinator."""
    clusters = (ClusterStatus(cluster=0), ClusterStatus(cluster=1))
    good = Status(node="edge-0", term=1, coordinator="edge-1", majority=True, clusters=clusters)
    assert asked(good, good).code == 0
    assert asked(replace(good, coordinator=None), good).code == 0
    assert asked(good, SILENCE).code == 1
    assert asked(replace(good, phase="finished"), SILENCE).code == 0
    assert asked(replace(good, coordinator=None), replace(good, coordinator=None)).code == 1
    assert asked(replace(good, majority=False), replace(good, majority=False)).code == 1


def test_status_names_versions_that_differ(asked: Callable[..., Answer]) -> None:
    clusters = (
        ClusterStatus(cluster=0, size=1, devices=(DeviceStatus(device=0, version="0.2"),)),
        ClusterStatus(cluster=1),
    )
    good = Status(node="edge-0", term=1, coordinator="edge-1", version="0.1", clusters=clusters)
    assert asked(good, good).out.splitlines()[-2:] == ["version 0.1: edge-0, edge-1", "version 0.2: device-0"]
    same = replace(good, clusters=(ClusterStatus(cluster=0), ClusterStatus(cluster=1)))
    assert "version" not in asked(same, same).out


def test_status_when_nobody_is_there(asked: Callable[..., Answer]) -> None:
    answer = asked("no", SILENCE)
    assert answer.code == 1
    assert answer.out.splitlines()[-3:] == [
        "edge 0: no",
        WHY,
        "no edge server answers: the federation has finished or is not running",
    ]
