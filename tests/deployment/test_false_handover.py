"""An edge server that hands a false state over to new coordinators: they take over what the others know."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from cfel.deployment.protocol.codec import from_message, to_message
from cfel.deployment.protocol.coordinator_requests import NewestAnswer
from cfel.deployment.security.identity import Identity
from cfel.deployment.transport.messages import Message
from tests.deployment.conftest import deployed
from tests.deployment.memory_federation import Federation, until
from tests.simulation.drive import timeless

LIAR = 2
TAKEOVER_SECONDS = 1.0


def lie(answer: NewestAnswer) -> NewestAnswer:
    """Claims round 3, with all energy used up."""
    if answer.state is None:
        return answer
    control = replace(answer.state.control, rounds_done=2, spent_joules=np.full(6, 1e300))
    state = replace(answer.state, control=control, edge_round=0, step=0, finished=(), plan=None, available=())
    return msgspec.structs.replace(answer, state=state)


@pytest.mark.long
def test_a_false_state_is_not_taken_over(tmp_path: Path, simulated: list[dict[str, Any]]) -> None:
    """Coordinators resign in the middle of rounds, until a successor hears the liar and names it.

    A successor asks a majority, so the first one may not hear the liar at all.
    """

    async def play() -> list[dict[str, Any]]:
        async with Federation(deployed(election_seconds=1.0, time_scale=1e-2), tmp_path) as federation:
            federation.start()
            await until("all are there", lambda: len(federation.edges) == 3)
            methods = federation.network.members[Identity("edge", LIAR)]
            honest = methods["newest"]

            async def hand_over(caller: Identity, message: Message) -> Message:
                return to_message(lie(from_message(await honest.handle(caller, message), NewestAnswer)))

            methods["newest"] = replace(honest, handle=hand_over)
            terms: dict[int, float] = {}

            def is_named() -> bool:
                leader, now = federation.coordinator(), asyncio.get_running_loop().time()
                begun = federation.edges[0].server.training.newest_state is not None
                if leader is not None and begun:
                    member = federation.edges[leader].member
                    patience = TAKEOVER_SECONDS if leader != LIAR and terms else 0.0
                    if now >= terms.setdefault(member.state.term, now) + patience:
                        member.resign(member.state.term, 3.0)
                shown = [federation.edges[i].take_snapshot().problem for i in range(3) if i != LIAR]
                return any("edge-2 answered newest with what is not used: a state of" in x for x in shown)

            await until("it is named", is_named)
            await federation.finished()
            return timeless(federation.records())

    assert asyncio.run(play()) == simulated
