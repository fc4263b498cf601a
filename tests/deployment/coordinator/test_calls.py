"""A coordinator's calls: whom it waits for, and how it learns that its term is over."""

import asyncio
from dataclasses import dataclass

import pytest

from cfel.deployment.coordinator.calls import DeposedError, TermCalls
from cfel.deployment.protocol.calls import Answer, Request
from cfel.deployment.protocol.edge_requests import EstimateAnswer, EstimateCommand
from cfel.deployment.security.identity import Identity
from cfel.errors import NotAdmittedError, RejectedError, StaleTermError, UnreachableError

COMMAND = EstimateCommand(3, (0, 0, 0), (True,))


@dataclass
class Edges:
    """Edge servers that fail as given, or answer."""

    failures: dict[int, Exception]

    async def call(self, to: Identity, request: Request[Answer], seconds: float) -> Answer:
        """See `Calls`."""
        del request, seconds
        if to.number in self.failures:
            raise self.failures[to.number]
        return EstimateAnswer(())  # type: ignore[return-value]


def command(failures: dict[int, Exception], *, leads: bool = True) -> tuple[list[int], set[int]]:
    """Who answered, and who is missing from then on."""
    calls = TermCalls(3, range(3), Edges(failures), lambda: leads, 0.0)
    return sorted(asyncio.run(calls.command(COMMAND, 0.0))), calls.missing


def test_one_edge_server_that_calls_the_term_stale_is_missing_while_the_election_says_otherwise() -> None:
    """It has not heard of the term yet, or lies; if a new one has begun, the election shows it."""
    assert command({1: StaleTermError("stale term 3")}) == ([0, 2], {1})


def test_a_stale_term_ends_the_work_once_the_election_says_so() -> None:
    leading = iter([True] * 3)
    calls = TermCalls(3, range(3), Edges({1: StaleTermError("stale")}), lambda: next(leading, False), 0.0)
    with pytest.raises(DeposedError, match="term 3 is over"):
        asyncio.run(calls.command(COMMAND, 60.0))


def test_words_alone_depose_nobody() -> None:
    assert command({1: RejectedError("a model of stale term 1 is not needed")}) == ([0, 2], set())


def test_an_edge_server_with_another_experiment_is_missing() -> None:
    assert command({1: NotAdmittedError("another experiment")}) == ([0, 2], {1})


def test_an_edge_server_that_does_not_answer_in_time_is_missing() -> None:
    assert command({2: UnreachableError("nobody answers")}) == ([0, 1], {2})


def test_a_coordinator_whose_term_is_over_commands_nothing() -> None:
    with pytest.raises(DeposedError, match="term 3 is over"):
        command({}, leads=False)


def test_a_deposed_coordinator_leaves_no_call_behind() -> None:
    """Edge server 1 says that the term is over while 0 and 2 are still at work."""
    at_work: set[int] = set()

    class Busy:
        async def call(self, to: Identity, request: Request[Answer], seconds: float) -> Answer:
            """See `Calls`."""
            del request, seconds
            if to.number == 1:
                await asyncio.sleep(0.01)
                raise StaleTermError("stale")
            at_work.add(to.number)
            try:
                await asyncio.sleep(60.0)
            finally:
                at_work.remove(to.number)
            raise AssertionError

    async def play() -> None:
        leading = iter([True] * 3)
        calls = TermCalls(3, range(3), Busy(), lambda: next(leading, False), 0.0)
        with pytest.raises(DeposedError):
            await calls.command(COMMAND, 60.0)
        assert at_work == set()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(play())
