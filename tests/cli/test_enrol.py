"""`cfel invite`, `join` and `deploy`, as an operator types them."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cfel.launch.node import read_node
from tests.cli.conftest import Run, Write
from tests.launch.test_node import free_port

EXPERIMENT = 'preset = "demo"\n[rounds]\nglobal = 1\n[fleet]\ndevices = 2\nclusters = 1\n'


@pytest.fixture
def experiment(write: Write) -> Path:
    return write("experiment.toml", EXPERIMENT)


def setting(experiment: Path) -> list[str]:
    at = f"127.0.0.1:{free_port()}"
    return ["--experiment", str(experiment), "--edges", "127.0.0.1", "--at", at, "--json"]


@pytest.fixture
def invited(experiment: Path, tmp_path: Path) -> Iterator[tuple["subprocess.Popen[str]", dict[str, str]]]:
    """A running `cfel invite`, and the tokens it printed."""
    command = [sys.executable, "-m", "cfel", "invite", str(tmp_path / "federation"), *setting(experiment)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    text = ""
    for line in lines:
        text += line
        if line.startswith("}"):
            break
    try:
        assert process.stderr is not None
        assert "for 3 nodes to join" in process.stderr.readline()
        yield process, json.loads(text)
    finally:
        process.kill()
        process.communicate()


def test_all_machines_join_and_the_command_ends(
    run: Run, tmp_path: Path, invited: tuple["subprocess.Popen[str]", dict[str, str]]
) -> None:
    process, tokens = invited
    assert sorted(tokens) == ["device-0", "device-1", "edge-0"]
    edge = run(
        "join", tokens["edge-0"], "--out", tmp_path / "gateway", "--setup-only", "--set", "log_level=debug"
    )
    assert (edge.code, edge.out) == (0, "")
    assert "edge-0 is set up in" in edge.err
    assert read_node(tmp_path / "gateway" / "edge-0" / "edge-0.toml").log.level == "debug"
    # Two nodes of one machine, with one command.
    devices = tokens["device-0"], tokens["device-1"]
    assert run("join", *devices, "--out", tmp_path / "phone", "--setup-only").code == 0
    assert process.wait(60) == 0
    assert process.stderr is not None
    assert "device-1 has joined; 0 invitations open" in process.stderr.read()
    again = run("join", tokens["device-0"], "--out", tmp_path / "thief", "--setup-only")
    assert again.code == 1
    assert "is `cfel invite` running there?" in again.err


def test_a_used_token_and_a_second_command(
    run: Run, tmp_path: Path, invited: tuple["subprocess.Popen[str]", dict[str, str]]
) -> None:
    """The second `cfel invite` makes a token and leaves the rest to the first, which still serves."""
    _, tokens = invited
    assert run("join", tokens["device-0"], "--out", tmp_path / "a", "--setup-only").code == 0
    refused = run("join", tokens["device-0"], "--out", tmp_path / "b", "--setup-only")
    assert refused.code == 3
    assert "has been used by another machine" in refused.err
    at = json.loads((tmp_path / "federation" / "invitations" / "device-0.json").read_text())
    assert at["used_by"]
    second = run("invite", tmp_path / "federation", "device-0", "--json")
    assert second.code == 0
    assert "another `cfel invite` serves this directory" in second.err
    assert list(second.document) == ["device-0"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["join", "cfel-nonsense"], "token 'cfel-nonsens'…: is not one of `cfel invite`, or not the whole"),
        (["join", "missing.tar.gz"], "is not one of `cfel invite`"),
        (["invite", "nowhere"], "is no directory of `cfel invite` yet: name --experiment and --edges once"),
        (["invite", "x", "--edges", "10.0.0.1"], "--experiment and --edges go together"),
        (["deploy", "missing.toml", "--out", "x"], "missing.toml: cannot be used"),
    ],
)
def test_wrong_usage(run: Run, arguments: list[str], words: str, tmp_path: Path) -> None:
    answer = run(*arguments)
    assert (answer.code, answer.out) == (2, "")
    assert words in answer.err.replace("\n", " ")
    assert list(tmp_path.iterdir()) == []


def test_a_node_that_is_not_in_the_experiment(run: Run, experiment: Path, tmp_path: Path) -> None:
    answer = run("invite", tmp_path / "f", "device-2", *setting(experiment))
    assert answer.code == 2
    assert "device-2: is not in the experiment; --edge adds it to the running federation" in answer.err
    answer = run("invite", tmp_path / "f", "edge-1", *setting(experiment))
    assert "edge-1: is not in the experiment; --address adds it to the running federation" in answer.err


def test_an_archive_is_joined_like_a_token(run: Run, write: Write, experiment: Path, tmp_path: Path) -> None:
    hosts = '[hosts.gateway]\naddress = "10.0.0.1"\nnodes = ["edge-0", "device-0", "device-1"]\n'
    inventory = write("inventory.toml", f'experiment = "{experiment.name}"\n{hosts}')
    packed = run("deploy", inventory, "--out", tmp_path / "federation")
    assert (packed.code, packed.out) == (0, f"{tmp_path / 'federation' / 'gateway.tar.gz'}\n")
    joined = run("join", packed.out.strip(), "--out", tmp_path / "gateway", "--setup-only")
    assert joined.code == 0
    names = sorted(path.name for path in (tmp_path / "gateway").iterdir())
    assert names == ["device-0", "device-1", "edge-0"]
    status = run("status", tmp_path / "federation")
    assert status.code == 1
    assert "no edge server answers" in status.out
