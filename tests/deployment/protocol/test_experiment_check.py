"""Members with another experiment are rejected with what differs; so is a directory of another one."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cfel.deployment.protocol.calls import Answer, Endpoint, ExperimentCheck, RemoteCalls, Request, serve
from cfel.deployment.protocol.device_requests import ModelAnswer, ModelRequest
from cfel.deployment.protocol.edge_requests import StatusAnswer, StatusRequest
from cfel.deployment.protocol.messages import Body, decode, encode
from cfel.deployment.security.identity import Identity
from cfel.errors import NotAdmittedError, RejectedError, StorageError
from cfel.experiment import Experiment, digest_shared_parts, parse_experiment
from cfel.launch.node import prepare_directory
from cfel.status import Status
from tests.deployment.conftest import deployed
from tests.support.memory_transport import MemoryNetwork

DEVICE, EDGE = Identity("device", 2), Identity("edge", 0)


@dataclass
class DirectCalls:
    """Calls that end at a list of endpoints, in the name of device 2."""

    endpoints: list[Endpoint]

    async def call(self, to: Identity, request: Request[Answer], seconds: float) -> Answer:
        """See `Calls`."""
        del to, seconds
        (found,) = (each for each in self.endpoints if each.request is type(request))
        answer: Answer = await found.handle(DEVICE, request)
        return answer


async def answer_model(caller: Identity, request: ModelRequest) -> ModelAnswer:
    del caller
    return ModelAnswer(Body.hash(request.sha256.encode()))


async def show_status(caller: Identity, request: StatusRequest) -> StatusAnswer:
    del caller, request
    return STATUS


STATUS = StatusAnswer(Status(node="edge-0"), (0, 0, 0), "leader")
ENDPOINTS = [serve(ModelRequest, answer_model, 7), serve(StatusRequest, show_status)]


def asked(mine: ExperimentCheck, theirs: ExperimentCheck) -> ModelAnswer:
    network = MemoryNetwork(0)
    network.serve(EDGE, theirs.check_endpoints(ENDPOINTS))
    calls = RemoteCalls(network.client(DEVICE), mine.parts)
    return asyncio.run(calls.call(EDGE, ModelRequest("0" * 64), 1.0))


def asked_directly(theirs: ExperimentCheck, request: Request[Answer]) -> Answer:
    return asyncio.run(DirectCalls(theirs.check_endpoints(ENDPOINTS)).call(EDGE, request, 1.0))


def experiment(**changes: Any) -> Experiment:
    return parse_experiment({"preset": "demo", **changes})


def test_the_same_experiment_is_not_in_the_way() -> None:
    same = ExperimentCheck(digest_shared_parts(experiment()))
    answer = asked(same, ExperimentCheck(digest_shared_parts(experiment())))
    assert answer.model.join() == b"0" * 64
    assert same.check_endpoints(ENDPOINTS)[0].most_bytes == 7


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seed": 7}, "seed differs"),
        ({"local": {"learning_rate": 0.5}, "rounds": {"global": 3}}, "local, rounds differ"),
        ({"deployment": {"conditions": "measured"}}, "deployment differs"),
    ],
)
def test_another_experiment_is_rejected_by_what_differs(changes: dict[str, Any], words: str) -> None:
    other = ExperimentCheck(digest_shared_parts(experiment(**changes)))
    with pytest.raises(NotAdmittedError, match=f"device-2 runs another experiment: {words}"):
        asked(other, ExperimentCheck(digest_shared_parts(experiment())))


def test_a_caller_that_does_not_say_which_is_rejected() -> None:
    with pytest.raises(NotAdmittedError, match="does not say which"):
        asked_directly(ExperimentCheck({"seed": "1"}), ModelRequest("x"))


@pytest.mark.parametrize("named", ["text", [], {"seed": None}, {"seed": 3}])
def test_an_experiment_is_named_by_texts(named: object) -> None:
    with pytest.raises(RejectedError, match="experiment"):
        decode(encode({"sha256": "0" * 64, "experiment": named}), ModelRequest)


@pytest.mark.parametrize("extra", ["", "3"])
def test_a_part_that_nobody_knows_is_named(extra: str) -> None:
    with pytest.raises(NotAdmittedError, match="more differs"):
        asked_directly(
            ExperimentCheck({"seed": "1"}), ModelRequest("x", experiment={"seed": "1", "more": extra})
        )


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
    assert asked_directly(ExperimentCheck({"seed": "1"}), StatusRequest()) is STATUS


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


def test_a_directory_of_another_experiment_is_rejected(settled: Path) -> None:
    other = deployed({"local": {"learning_rate": 0.123}})
    with pytest.raises(StorageError, match=r"local\.learning_rate = .*, not 0\.123"):
        prepare_directory(settled, other, other.build_world())


def test_a_node_may_do_its_work_otherwise(settled: Path) -> None:
    before = (settled / "experiment.toml").read_bytes()
    prepare_directory(
        settled, deployed({"simulation": {"engine": "batched", "workers": 7}}), deployed().build_world()
    )
    assert (settled / "experiment.toml").read_bytes() == before


def test_a_flood_of_parts_is_not_listed() -> None:
    """A device may name as many as a message holds; each of them in a reason would keep the node busy."""

    async def play() -> None:
        (endpoint,) = ExperimentCheck({"model": "a"}).check_endpoints([serve(ModelRequest, answer_model)])
        with pytest.raises(NotAdmittedError, match="names 5000 parts"):
            await endpoint.handle(
                DEVICE, ModelRequest("0" * 64, experiment=dict.fromkeys(map(str, range(5000)), ""))
            )

    asyncio.run(play())
