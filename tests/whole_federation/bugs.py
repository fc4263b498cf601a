"""Known bugs to plant: what the checker must find, or it proves nothing."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from itertools import count
from typing import Any
from unittest.mock import patch

from msgspec import structs

from cfel.deployment.coordinator import coordinator
from cfel.deployment.coordinator.calls import Handover, take_over
from cfel.deployment.device import agent
from cfel.deployment.edge import neighbours, server
from cfel.deployment.edge.node import EdgeNode
from cfel.deployment.election import member, rules
from cfel.deployment.election.member import Member
from cfel.deployment.protocol.edge_requests import ChangeAnswer, ChangeRequest
from cfel.runlog import RoundRecord
from tests.support.memory_disk import MemoryDisk


def skip_the_sync_of_a_vote() -> AbstractContextManager[Any]:
    """A vote is sent before it is on the disk."""

    class Forgetful:
        def __init__(self, disk: MemoryDisk) -> None:
            self.disk = disk

        def replace(self, path: Any, content: bytes) -> None:
            self.disk.replace_unsynced(path, content)

    save = member.save_vote
    return patch.object(member, "save_vote", lambda disk, *rest: save(Forgetful(disk), *rest))  # type: ignore[arg-type]


def train_again_for_the_same_order() -> AbstractContextManager[Any]:
    """A device does not recognise an order that it has carried out, and makes another upload."""
    numbers = count()
    return patch.object(
        agent,
        "order_key",
        lambda order: (order.round, order.model, order.rho, order.theta, float(next(numbers))),
    )


def use_a_stale_proposal() -> AbstractContextManager[Any]:
    """A successor takes the newest record that it finds, of whatever round."""

    def choose(self: Handover, own: RoundRecord) -> RoundRecord:
        return max(self.records, key=lambda each: each.term).record if self.records else own

    return patch.object(Handover, "choose_record", choose)


def ignore_proposals() -> AbstractContextManager[Any]:
    """A successor proposes its own record although an earlier coordinator's may be logged somewhere."""
    return patch.object(Handover, "choose_record", lambda _, own: own)


def obey_anybody() -> AbstractContextManager[Any]:
    """An edge server does not check that a command comes from the leader of the term."""

    async def admit(*_: object) -> None:
        return

    return patch.object(Member, "admit", admit)


def count_a_round_twice() -> AbstractContextManager[Any]:
    """A successor adds what the last edge round has spent to what it takes over."""

    async def take(*arguments: Any) -> Handover:
        found = await take_over(*arguments)
        state = found.state
        if not state.finished or state.plan is not None:
            return found
        return replace(found, state=replace(state, finished=(*state.finished, state.finished[-1])))

    return patch.object(coordinator, "take_over", take)


def confirm_a_change_too_early() -> AbstractContextManager[Any]:
    """A change is confirmed before the record that it belongs to is stored by a majority."""
    ask = EdgeNode._ask_for_change

    async def confirm(self: EdgeNode, caller: Any, request: ChangeRequest) -> ChangeAnswer:
        answer = await ask(self, caller, request)
        return answer if answer.round else ChangeAnswer(self.server.state.position[0] + 2)

    return patch.object(EdgeNode, "_ask_for_change", confirm)


def keep_the_old_majority() -> AbstractContextManager[Any]:
    """Who votes stays the same when edge servers join and leave."""
    return patch.object(Member, "change_members", lambda *_: None)


def vote_for_anybody() -> AbstractContextManager[Any]:
    """A member votes also for one that has not heard which edge servers have joined and left."""
    is_free = rules._is_free

    def vote(state: Any, candidate: int, request: rules.VoteRequest, now: float) -> bool:
        return is_free(state, candidate, structs.replace(request, changes=10**6), now)

    return patch.object(rules, "_is_free", vote)


def forget_uses_elsewhere() -> AbstractContextManager[Any]:
    """An edge server tells devices that move to it only of uploads that it has used itself."""
    return patch.object(server, "_latest", lambda own, _: own)


def forget_uses_that_nobody_heard_of() -> AbstractContextManager[Any]:
    """An edge server used an upload and died before it could say so; back again, it mixes its model."""
    stack = ExitStack()
    stack.enter_context(patch.object(coordinator, "note_used", lambda state, _: state))
    stack.enter_context(patch.object(server.EdgeServer, "_loses_devices", lambda *_: False))
    stack.enter_context(forget_uses_in_a_model())
    return stack


def forget_uses_in_a_model() -> AbstractContextManager[Any]:
    """An edge server that takes another one's model does not ask which uploads are in it."""
    return patch.object(neighbours, "merge_rounds", lambda own, _: own)


BUGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "vote-not-synced": skip_the_sync_of_a_vote,
    "upload-not-recognised": train_again_for_the_same_order,
    "stale-proposal": use_a_stale_proposal,
    "proposal-ignored": ignore_proposals,
    "leader-not-checked": obey_anybody,
    "round-counted-twice": count_a_round_twice,
    "change-lost": confirm_a_change_too_early,
    "old-majority": keep_the_old_majority,
    "voters-not-compared": vote_for_anybody,
    "use-not-moved": forget_uses_elsewhere,
    "use-unheard": forget_uses_that_nobody_heard_of,
    "use-in-a-model": forget_uses_in_a_model,
}


@contextmanager
def plant(name: str | None) -> Iterator[None]:
    """Plants a bug while the context lasts; none without a name."""
    if name is None:
        yield
        return
    with BUGS[name]():
        yield
