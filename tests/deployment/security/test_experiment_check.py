"""Members with another experiment are refused and told what differs; so is a directory of another one."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cfel.deployment.security.experiment_check import ExperimentCheck
from cfel.deployment.security.identity import Identity
from cfel.deployment.transport.grpc_transport import Method
from cfel.deployment.transport.messages import Message
from cfel.errors import NotAdmittedError, StorageError
from cfel.experiment import Experiment, digest_shared_parts, parse_experiment
from cfel.launch.node import prepare_directory
from tests.deployment.conftest import deployed

DEVICE, EDGE = Identity("device", 2), Identity("edge", 0)


@dataclass
class Straight:
    """Calls that end at a table of methods."""

    methods: dict[str, Method]

    async def call(self, to: Identity, method: str, message: Message, seconds: float) -> Message:
        """See `Calls`."""
        del to, seconds
        return await self.methods[method].handle(DEVICE, message)


def answered(method: Method, caller: Identity, message: Message) -> Message:
    async def wait() -> Message:
        return await method.handle(caller, message)

    return asyncio.run(wait())


async def echo(caller: Identity, message: Message) -> Message:
    del caller
    return Message(dict(message.header), message.body)


METHODS = {"next": Method(("device",), echo, 7), "status": Method(("edge", "operator"), echo)}


def asked(mine: ExperimentCheck, theirs: ExperimentCheck) -> Message:
    calls = mine.add_to_calls(Straight(theirs.check_methods(METHODS)))
    return asyncio.run(calls.call(EDGE, "next", Message({"after": "x"}, b"body"), 1.0))


def experiment(**changes: Any) -> Experiment:
    return parse_experiment({"preset": "demo", **changes})


def test_the_same_experiment_is_not_in_the_way() -> None:
    same = ExperimentCheck(digest_shared_parts(experiment()))
    answer = asked(same, ExperimentCheck(digest_shared_parts(experiment())))
    assert (answer.header, answer.body) == ({"after": "x"}, b"body")
    assert same.check_methods(METHODS)["next"].most_bytes == 7


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seed": 7}, "seed differs"),
        ({"local": {"learning_rate": 0.5}, "rounds": {"global": 3}}, "local, rounds differ"),
        ({"deployment": {"conditions": "measured"}}, "deployment differs"),
    ],
)
def test_another_experiment_is_refused_by_what_differs(changes: dict[str, Any], words: str) -> None:
    other = ExperimentCheck(digest_shared_parts(experiment(**changes)))
    with pytest.raises(NotAdmittedError, match=f"device-2 runs another experiment: {words}"):
        asked(other, ExperimentCheck(digest_shared_parts(experiment())))


@pytest.mark.parametrize("told", [None, "text", []])
def test_whoever_does_not_say_which_is_refused(told: object) -> None:
    method = ExperimentCheck({"seed": "1"}).check_methods(METHODS)["next"]
    with pytest.raises(NotAdmittedError, match="does not say which"):
        answered(method, DEVICE, Message({} if told is None else {"experiment": told}))


@pytest.mark.parametrize("extra", [None, "", 3])
def test_a_part_that_nobody_knows_is_named(extra: object) -> None:
    method = ExperimentCheck({"seed": "1"}).check_methods(METHODS)["next"]
    with pytest.raises(NotAdmittedError, match="more differs"):
        answered(method, DEVICE, Message({"experiment": {"seed": "1", "more": extra}}))


def test_equal_numbers_are_equal_experiments() -> None:
    whole = experiment(local={"momentum": 0, "learning_rate": 1}, budget={"seconds": 100})
    decimal = experiment(local={"momentum": 0.0, "learning_rate": 1.0}, budget={"seconds": 100.0})
    assert digest_shared_parts(whole) == digest_shared_parts(decimal)


def test_files_count_by_what_they_hold(tmp_path: Path) -> None:
    parts = []
    for name, links in (("a", "0,1\n1,2\n"), ("b", "0,1\n1,2\n"), ("c", "0,1\n0,2\n")):
        file = tmp_path / f"{name}.csv"
        file.write_text(links)
        parts.append(digest_shared_parts(experiment(topology={"kind": "file", "file": str(file)})))
    assert parts[0] == parts[1]
    assert parts[0] != parts[2]


def test_an_operator_has_no_experiment() -> None:
    status = ExperimentCheck({"seed": "1"}).check_methods(METHODS)["status"]
    assert answered(status, Identity("operator", 0), Message({"a": 1})).header == {"a": 1}


def test_what_is_a_members_own_business() -> None:
    parts = digest_shared_parts(experiment())
    assert parts == digest_shared_parts(
        experiment(name="other", simulation={"workers": 1, "engine": "threads"})
    )
    assert parts == digest_shared_parts(experiment(deployment={"round_seconds": 7.0}))
    here, there = (experiment(data={"name": "cifar10", "path": path}) for path in ("/a", "/b"))
    assert digest_shared_parts(here) == digest_shared_parts(there)


@pytest.fixture(scope="module")
def settled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("node") / "device-0"
    prepare_directory(directory, deployed(), deployed().build_world())
    return directory


def test_a_directory_is_settled_once(settled: Path) -> None:
    before = (settled / "environment.json").read_bytes()
    prepare_directory(settled, deployed(round_seconds=33.0), deployed().build_world())
    assert (settled / "environment.json").read_bytes() == before


def test_a_directory_of_another_experiment_is_refused(settled: Path) -> None:
    other = deployed({"local": {"learning_rate": 0.123}})
    with pytest.raises(StorageError, match=r"local\.learning_rate = .*, not 0\.123: .*another directory"):
        prepare_directory(settled, other, other.build_world())


def test_a_node_may_do_its_work_otherwise(settled: Path) -> None:
    before = (settled / "experiment.toml").read_bytes()
    prepare_directory(
        settled, deployed({"simulation": {"engine": "batched", "workers": 7}}), deployed().build_world()
    )
    assert (settled / "experiment.toml").read_bytes() == before
