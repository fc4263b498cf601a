"""Nodes on their machine: files, units and archives. Commands of the system are replaced."""

import os
import pwd
import re
import shutil
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest

from cfel.cli.dispatch import build_parser
from cfel.deployment.security.certificates import issue, make_authority
from cfel.deployment.security.credentials import read_credentials
from cfel.deployment.security.identity import Identity
from cfel.errors import DeploymentError, ExperimentError, InputError
from cfel.launch import machine
from cfel.launch.enrolment import NodeKit
from cfel.launch.machine import (
    NodeSetup,
    Place,
    choose_place,
    pack,
    set_up,
    start_services,
    unpack,
    write_unit,
)
from cfel.launch.node import read_node

EDGE, DEVICE = Identity("edge", 0), Identity("device", 4)
KIT = NodeKit(
    ("10.0.0.1:7400",), {"experiment.toml": b'preset = "demo"\n', "my_model.py": b"x = 1\n"}, b"1f\n"
)


def make_setup(folder: Path, identity: Identity, kit: NodeKit = KIT) -> NodeSetup:
    make_authority(folder)
    issue(folder, identity, 1)
    return NodeSetup(identity, *read_credentials(folder, identity), kit)


def list_files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_node_is_set_up_in_a_folder_of_its_own(tmp_path: Path) -> None:
    setup = make_setup(tmp_path / "ca", EDGE)
    config = set_up(Place(tmp_path / "here"), setup, {"dashboard": "127.0.0.1:8470"})
    files = list_files(config.parent)
    assert sorted(files) == [
        "certificates/authority.pem",
        "certificates/edge-0.key",
        "certificates/edge-0.pem",
        "certificates/revoked.txt",
        "cfel-edge-0.service",
        "edge-0.toml",
        "experiment.toml",
        "my_model.py",
    ]
    assert files["certificates/revoked.txt"] == b"1f\n"
    assert read_node(config).dashboard == "127.0.0.1:8470"
    key = config.parent / "certificates" / "edge-0.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    # A second time, as after a renewal, replaces the pair and keeps the state.
    (config.parent / "state").mkdir()
    issue(tmp_path / "ca", EDGE, 1)
    renewed = NodeSetup(EDGE, *read_credentials(tmp_path / "ca", EDGE), KIT)
    assert set_up(Place(tmp_path / "here"), renewed, {}) == config
    assert key.read_bytes() == renewed.key != setup.key
    assert (config.parent / "state").is_dir()
    # So is what was set on the machine.
    assert read_node(config).dashboard == "127.0.0.1:8470"


def test_paths_of_the_command_line_start_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    changes = {"data": "m:f", "data_path": "samples.npz", "import_from": "code"}
    found = read_node(set_up(Place(tmp_path / "here"), make_setup(tmp_path / "ca", DEVICE), changes))
    assert (found.data_path, found.import_from) == (tmp_path / "samples.npz", (tmp_path / "code",))


@pytest.mark.parametrize(("key", "words"), [("listn", "did you mean 'listen'"), ("listen", "must be a host")])
def test_a_wrong_key_is_named(tmp_path: Path, key: str, words: str) -> None:
    with pytest.raises(ExperimentError, match=words):
        set_up(Place(tmp_path / "here"), make_setup(tmp_path / "ca", EDGE), {key: "x"})


def test_a_node_of_another_federation_is_left_alone(tmp_path: Path) -> None:
    place = Place(tmp_path / "here")
    config = set_up(place, make_setup(tmp_path / "ca", DEVICE), {})
    before = list_files(config.parent)
    with pytest.raises(InputError, match="is a node of another federation"):
        set_up(place, make_setup(tmp_path / "other", DEVICE), {})
    assert list_files(config.parent) == before


@pytest.mark.parametrize(
    "names", [["edge-0.toml"], ["certificates"], ["../experiment.toml"], ["a/x", "x"], [".."], []]
)
def test_files_that_would_be_stored_elsewhere_are_refused(tmp_path: Path, names: list[str]) -> None:
    kit = NodeKit(KIT.addresses, {"experiment.toml": b""} | dict.fromkeys(names, b""), b"")
    if not names:
        kit = NodeKit(KIT.addresses, {}, b"")
    with pytest.raises(InputError, match="cannot be stored here"):
        set_up(Place(tmp_path / "here"), make_setup(tmp_path / "ca", EDGE, kit), {})
    assert not (tmp_path / "here" / "experiment.toml").exists()


def test_an_archive_carries_nodes_to_their_host(tmp_path: Path) -> None:
    setups = [make_setup(tmp_path / "ca", DEVICE), make_setup(tmp_path / "ca", EDGE)]
    pack(setups, tmp_path / "host.tar.gz")
    assert stat.S_IMODE((tmp_path / "host.tar.gz").stat().st_mode) == 0o600
    found = unpack(tmp_path / "host.tar.gz")
    # A device has no list of revoked certificates.
    device = NodeSetup(
        **{each: getattr(setups[0], each) for each in ("identity", "authority")},
        certificate=setups[0].certificate,
        key=setups[0].key,
        kit=NodeKit(KIT.addresses, KIT.files, b""),
    )
    assert found == [device, setups[1]]


def test_what_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"not gzip")
    with pytest.raises(InputError, match="neither a token nor an archive"):
        unpack(tmp_path / "x")
    with tarfile.open(tmp_path / "link.tar.gz", "w:gz") as tar:
        entry = tarfile.TarInfo("edge-0")
        entry.type, entry.linkname = tarfile.SYMTYPE, "/etc"
        tar.addfile(entry)
    with pytest.raises(InputError, match="neither a token nor an archive"):
        unpack(tmp_path / "link.tar.gz")


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The commands of the system that were run; none really is."""
    found: list[tuple[str, ...]] = []
    monkeypatch.setattr(machine, "_run", lambda *command: found.append(command))
    return found


def test_as_a_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands: list[tuple[str, ...]]
) -> None:
    """Files belong to root, and its user may read them; the key is its own."""
    owners: dict[str, tuple[int, int]] = {}
    monkeypatch.setattr(os, "chown", lambda path, *owner: owners.update({Path(path).name: owner}))
    entry = pwd.struct_passwd(("cfel", "x", 990, 991, "", "/", "/"))
    known: list[pwd.struct_passwd] = []

    def find(name: str) -> pwd.struct_passwd:
        assert name == "cfel"
        if not commands and not known:
            raise KeyError(name)
        return entry

    monkeypatch.setattr(pwd, "getpwnam", find)
    (tmp_path / "units").mkdir()
    place = Place(tmp_path / "etc", tmp_path / "var", tmp_path / "units")
    config = set_up(place, make_setup(tmp_path / "ca", EDGE), {})
    assert read_node(config).node.directory == tmp_path / "var" / "edge-0"
    assert commands[0][0] == "useradd"
    assert owners["edge-0.key"] == (990, 991)
    assert {owner for name, owner in owners.items() if name != "edge-0.key"} == {(0, 991)}
    assert stat.S_IMODE((config.parent / "certificates" / "edge-0.pem").stat().st_mode) == 0o640
    start_services([EDGE, DEVICE])
    assert commands[1:] == [
        ("systemctl", "daemon-reload"),
        ("systemctl", "enable", "--now", "cfel-edge-0.service", "cfel-device-4.service"),
    ]
    unit = (tmp_path / "units" / "cfel-edge-0.service").read_text()
    assert f'"--config" "{config}"' in unit


def test_a_command_that_fails_says_why() -> None:
    with pytest.raises(DeploymentError, match=r"false --x: .*non-zero"):
        machine._run("false", "--x")
    with pytest.raises(DeploymentError, match="no-such-command"):
        machine._run("no-such-command")


def test_services_need_root_systemd_and_a_place_that_they_may_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "SYSTEMD", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("sys.prefix", "/opt/cfel")
    assert choose_place(None) == Place(Path("/etc/cfel"), Path("/var/lib/cfel"), Path("/etc/systemd/system"))
    assert not choose_place(tmp_path).is_service
    monkeypatch.setattr("sys.prefix", "/home/me/venv")
    with pytest.raises(InputError, match="installed in /home/me/venv, where the service's user may not look"):
        choose_place(None)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert choose_place(None) == Place(Path.cwd())
    monkeypatch.setattr(machine, "SYSTEMD", tmp_path / "missing")
    assert not choose_place(None).is_service


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("identity", [EDGE, DEVICE])
def test_units_expose_little(tmp_path: Path, identity: Identity) -> None:
    unit = tmp_path / f"cfel-{identity}.service"
    unit.write_text(write_unit(identity, Path("/etc/cfel/x.toml")))
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    assert found.stderr == ""
    assert float(re.findall(r"exposure level for \S+: ([0-9.]+)", found.stdout)[0]) < 2.0


def test_a_unit_starts_its_node_and_leaves_it_down_where_a_restart_is_no_help() -> None:
    text = write_unit(DEVICE, Path("/etc/my cfel/100%.toml"))
    (command,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    words = [word.replace("%%", "%") for word in re.findall(r'"([^"]*)"', command)]
    assert words[1:3] == ["-m", "cfel"]
    parsed = build_parser("device").parse_args(words[3:])
    assert str(parsed.config) == "/etc/my cfel/100%.toml"
    assert re.findall(r"^RestartPreventExitStatus=(.*)$", text, re.MULTILINE) == ["2 3 4 5 6 7 8"]
