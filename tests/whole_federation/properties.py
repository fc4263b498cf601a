"""What must be true of every history, whatever happened to the nodes.

Each property is a function from a history to what violates it, in words. They look at the calls that edge
servers answered and at what reached the disks; none looks into a node.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from hashlib import sha256
from itertools import product
from math import isclose
from typing import Any

import numpy as np

from cfel.deployment.coordinator.state import Position, gossip_steps
from cfel.deployment.edge.storage import EdgeDisk
from cfel.deployment.election.rules import Heartbeat, VoteReply, VoteRequest
from cfel.deployment.protocol.device_requests import NextOrder, NextRequest, UploadRequest
from cfel.deployment.protocol.edge_requests import (
    ChangeRequest,
    CloseCommand,
    Command,
    ElectionRequest,
    EstimateCommand,
    MixCommand,
    NewestRequest,
    PlanCommand,
)
from cfel.deployment.security.identity import Identity
from cfel.errors import CfelError
from cfel.runlog import RoundRecord
from tests.simulation.drive import timeless
from tests.support.memory_disk import MemoryDisk
from tests.whole_federation.history import Call, History
from tests.whole_federation.schedule import ALL_EDGES
from tests.whole_federation.subject import HOME, simulated
from tests.whole_federation.uploads import uploads_are_used_once


def everybody_ends(history: History) -> Iterator[str]:
    """When all faults are over, the run ends by itself, and nothing unforeseen was raised.

    An edge server that is no member any more, or not yet, may have missed that, and then nobody tells it.
    Nor does anybody tell a device that is started when all have ended, or that waits for such an edge server,
    if that one came back only then: a finished edge server, started again, tells both.
    """
    outside = [
        edge for edge in set(ALL_EDGES).difference(history.last_members) if not _has_left(history, edge)
    ]
    heard = {call.caller for call in history.answered(NextRequest)}
    outside += [each for each in history.stuck if each.role == "device" and each not in heard]
    outside += _waiting_for_latecomers(history, outside)
    if stuck := sorted(str(each) for each in history.stuck if each not in outside):
        yield f"{', '.join(stuck)} have not ended"
    yield from history.crashes


def _waiting_for_latecomers(history: History, outside: list[Identity]) -> list[Identity]:
    """Devices whose last answer is of one that nobody tells, first called when all members had ended."""
    first: dict[tuple[Identity, int], int] = {}
    ended = 0
    for place, call in enumerate(history.calls):
        first.setdefault(call.process, place)
        if call.process[0] in history.last_members:
            ended = max(ended, call.answered_at)
    last = {call.caller: call.process for call in history.answered(NextRequest)}
    return [device for device, asked in last.items() if asked[0] in outside and first[asked] >= ended]


def _has_left(history: History, edge: Identity) -> bool:
    """Whether an edge server has logged that it was removed."""
    changes = [change for record in history.log(edge) for change in record.changes]
    return any((each.what, each.edge) == ("remove edge", edge.number) for each in changes)


def one_leader_per_term(history: History) -> Iterator[str]:
    """Nobody else sends heartbeats or has commands carried out in the same term."""
    leaders: defaultdict[int, set[Identity]] = defaultdict(set)
    for call in history.calls:
        if isinstance(call.request, ElectionRequest) and isinstance(call.request.message, Heartbeat):
            leaders[call.request.message.term].add(call.caller)
    for call in history.answered(Command):
        leaders[call.request.term].add(call.caller)
    for term, found in leaders.items():
        if len(found) > 1:
            yield f"term {term} has the leaders {', '.join(sorted(map(str, found)))}"


def commands_of_the_newest_leader(history: History) -> Iterator[str]:
    """No edge server begins to carry out a command of a term after it has answered a later leader."""
    known: defaultdict[Identity, int] = defaultdict(int)
    answers = sorted(
        (call for call in history.answered(ElectionRequest, NewestRequest)),
        key=lambda call: call.answered_at,
    )
    next_answer = 0
    for place, call in enumerate(history.calls):
        while next_answer < len(answers) and answers[next_answer].answered_at <= place:
            earlier = answers[next_answer]
            next_answer += 1
            if (term := _shown_term(earlier)) is not None:
                known[earlier.process[0]] = max(known[earlier.process[0]], term)
        own = call.process[0]
        if isinstance(call.request, Command) and call.answer is not None and call.request.term < known[own]:
            yield (
                f"{own} carried out {call.request.method} of {call.caller} in term {call.request.term}, "
                f"after it had answered the leader of term {known[own]}"
            )


def _shown_term(call: Call) -> int | None:
    """The term that its receiver has entered with this call."""
    if isinstance(call.request, NewestRequest):
        return call.request.term
    return call.request.message.term if isinstance(call.request.message, Heartbeat) else None


def votes_go_to_those_who_know_the_members(history: History) -> Iterator[str]:
    """Nobody votes for one that has not heard of an edge server's coming or going that the voter has logged.

    A majority of the old members could elect it while one of the new members elects another.
    """
    known: defaultdict[Identity, int] = defaultdict(int)
    voted: set[tuple[Identity, int]] = set()
    closed = sorted(history.answered(CloseCommand), key=lambda call: call.answered_at)
    answered = iter([call for call in closed if not call.request.last])
    after = next(answered, None)
    for place, call in enumerate(history.calls):
        while after is not None and after.answered_at <= place:
            changes = history.lived.membership_at(after.request.record.round).voter_changes
            known[after.process[0]] = max(known[after.process[0]], changes)
            after = next(answered, None)
        own = call.process[0]
        if not _is_granted(call) or (own, call.request.message.term) in voted:
            continue  # a vote that was given before is repeated
        voted.add((own, call.request.message.term))
        if call.request.message.changes < known[own]:
            yield (
                f"{own} votes in term {call.request.message.term} for {call.caller}, who knows of "
                f"{call.request.message.changes} of {known[own]} edge servers that came or went"
            )


def _is_granted(call: Call) -> bool:
    """Whether it is a vote, and not only a promise to vote."""
    message = call.request.message if isinstance(call.request, ElectionRequest) else None
    if not isinstance(message, VoteRequest) or message.preliminary or call.answer is None:
        return False
    return isinstance(call.answer.reply, VoteReply) and call.answer.reply.granted


def acknowledged_uploads_are_used(history: History) -> Iterator[str]:
    """An upload that an edge server confirmed is in its edge round, if the process lived to answer for it."""
    answers = {
        (call.process, call.request.position[:2]): call
        for call in reversed(list(history.answered(PlanCommand)))
    }
    for upload in history.answered(UploadRequest):
        found = answers.get((upload.process, tuple(upload.request.round)))
        if found is None or found.answered_at <= upload.answered_at:
            continue
        if upload.caller.number not in {each.device for each in found.answer.devices}:
            yield f"{upload.process[0]} lost the upload of {upload.caller} for round {upload.request.round}"


def edge_rounds_happen_once(history: History) -> Iterator[str]:
    """All questions about an edge round or a gossip step, at any time, get the same answer."""
    first: dict[tuple[Identity, Position, type], Any] = {}
    for call in [*history.answered(PlanCommand), *history.answered(MixCommand)]:
        key = (call.process[0], call.request.position, type(call.request))
        if str(first.setdefault(key, call.answer)) != str(call.answer):
            yield f"{key[0]} carried out {call.request.method} at {key[1]} twice, with other results"
    for (edge, at), answer in history.edge_rounds().items():
        devices = [each.device for each in answer.devices]
        if len(devices) != len(set(devices)):
            yield f"{edge} used an upload twice at {at}: {devices}"


def orders_are_carried_out_once(history: History) -> Iterator[str]:
    """A device that gets the same order again sends the same upload: training twice would use data twice."""
    asked: dict[Identity, Any] = {}
    made: dict[tuple[Any, ...], Any] = {}
    for call in history.calls:
        if isinstance(call.request, UploadRequest) and not call.request.content_sha256:
            order = asked.get(call.caller, {}).get(tuple(call.request.round))
            if order is None:
                continue
            # The model, ρ, θ and the rate tell orders of one round apart; steps and loss tell updates apart.
            content = (call.request.content.digest, call.request.steps, str(call.request.loss))
            if len(order) == 1 and made.setdefault((call.caller, *order), content) != content:
                yield f"{call.caller} trained twice for round {call.request.round}"
        if isinstance(call.request, NextRequest) and isinstance(call.answer, NextOrder):
            order = call.answer.order
            key = (tuple(order.round), order.model, order.rho, order.theta, order.rate)
            if call.answer.kind == "update":
                asked.setdefault(call.caller, {}).setdefault(tuple(order.round), set()).add(key)


def records_are_equal_everywhere(history: History) -> Iterator[str]:
    """All logs are the same, without gap or repeat; what was confirmed as logged stays."""
    for edge in ALL_EDGES:
        records = history.log(edge)
        numbers = [each.round for each in records]
        if numbers != list(range(1, len(numbers) + 1)):
            yield f"{edge} has the rounds {numbers}"
        if records != history.records[: len(records)]:
            yield f"the log of {edge} differs from another one"
        if edge in history.last_members and not history.stuck and len(records) < len(history.records):
            yield f"{edge} has ended with {len(records)} of {len(history.records)} records"
    for call in history.answered(CloseCommand):
        if call.request.record not in history.log(call.process[0]):
            yield f"{call.process[0]} confirmed round {call.request.record.round}, which is not in its log"


def budgets_are_counted_once(history: History) -> Iterator[str]:
    """Each record adds the joules of its own edge rounds, of every device once."""
    world = history.world
    for edge in ALL_EDGES:
        before = 0.0
        for record in history.log(edge):
            before_this, before = before, record.joules
            table = history.find_table(edge, record.round)
            if table is None:
                continue
            rows = list(zip(table.edge_round.tolist(), table.device.tolist(), strict=True))
            if (
                len(rows) != len(set(rows))
                or max(table.edge_round, default=0) >= world.setting.rounds.edge_rounds
            ):
                yield f"{edge} counts a device twice in round {record.round}"
            spent = float(np.sum(table.joules)) + (record.backhaul_joules or 0.0)
            if not isclose(record.joules - before_this, spent, rel_tol=1e-9, abs_tol=1e-9):
                counted = record.joules - before_this
                yield f"{edge}, round {record.round}: {counted} J counted, {spent} J spent"


def changes_hold(history: History) -> Iterator[str]:
    """A change of the fleet that was confirmed is in the log, once, for the round that was named."""
    for call in history.answered(ChangeRequest):
        ticket, first = call.request.change.ticket, call.answer.round
        logged = [
            each.round for record in history.records for each in record.changes if each.ticket == ticket
        ]
        if logged != [first] * bool(first) and (first or len(logged) > 1):
            yield f"{call.request.change.describe()}: confirmed for round {first}, logged for {logged}"


def models_are_those_of_the_simulator(history: History) -> Iterator[str]:
    """Where no upload and no gossip was lost, records and models equal the simulator's to the last bit."""
    records = history.records
    is_patient = history.schedule.is_patient
    is_complete = not history.stuck and (history.schedule.loses_nothing or nothing_was_lost(history))
    is_large, changes = history.schedule.is_large, history.lived.changes
    if is_complete and timeless(records) != simulated(
        is_patient=is_patient, is_large=is_large, downloads=history.schedule.downloads, changes=changes
    ):
        yield "the log differs from the simulator's"
    for edge in history.last_members:
        disk = MemoryDisk()
        disk.files = history.disks[edge]
        try:
            state = EdgeDisk(disk, HOME / str(edge), history.world.start).load()
        except CfelError as error:
            yield str(error)
            continue
        if not state.model.is_finite():
            yield f"the model of {edge} is not finite"
        if not history.stuck and state.position[0] < len(records):
            yield f"{edge} has ended at {state.position}, after {len(records)} rounds"


def nothing_was_lost(history: History) -> bool:
    """Whether all devices took part in all edge rounds, with one order each, and all edge servers in gossip.

    A coordinator must also have heard of the gossip, or its record names an earlier model.
    A second plan for a round, made when nobody knows the first any more, has devices train twice: uploads for
    the first are lost, and momentum keeps what it learned from them.
    """
    world = history.lived
    orders: defaultdict[tuple[Identity, Any], set[Any]] = defaultdict(set)
    for call in history.answered(NextRequest):
        if isinstance(call.answer, NextOrder) and call.answer.kind == "update":
            order = call.answer.order
            orders[call.caller, order.round].add((order.model, order.rho, order.theta, order.rate))
    if any(len(each) > 1 for each in orders.values()):
        return False
    answered = list(history.answered(EstimateCommand))
    found = {(call.process[0], call.request.position) for call in answered}
    for call in history.calls:
        # It was frozen until nobody waited any more: the others planned without its devices' estimates.
        is_asked = isinstance(call.request, EstimateCommand)
        if is_asked and (call.process[0], call.request.position) not in found:
            return False
    for call in answered:
        members = world.membership_at(call.request.position[0])
        if len(call.answer.devices) < len(members.list_devices(call.process[0].number)):
            return False
    rounds, mixes = history.edge_rounds(), history.mixes()
    for number in range(len(history.records)):
        setting = world.at(number).setting
        for edge in history.members(number):
            own = set(world.membership_at(number).list_devices(edge.number))
            for edge_round in range(setting.rounds.edge_rounds):
                answers = [
                    each for (i, at), each in rounds.items() if (i, at[:2]) == (edge, (number, edge_round))
                ]
                if not answers or {each.device for each in answers[0].devices} != own:
                    return False
            for at in _list_steps(history, number):
                mix = mixes.get((edge, at))
                if mix is None or np.array(mix.rows).tolist() != setting.backhaul_at(*at).weights.tolist():
                    return False
    return all(_last_digests(history, each) is not None for each in history.records)


def _list_steps(history: History, number: int) -> list[Position]:
    """The gossip steps of a global round, counted from 0."""
    world = history.lived.at(number)
    places = range(1, world.setting.rounds.edge_rounds + 1)
    return [(number, done, step) for done in places for step in range(gossip_steps(world, done))]


def records_name_models(history: History) -> Iterator[str]:
    """The digest in a record is that of the edge models, each the newest that a coordinator may know."""
    for record in history.records:
        if _last_digests(history, record) is not None:
            continue
        known = [_digests_before(history, edge, record.round) for edge in history.members(record.round - 1)]
        if all(_digest_of(each) != record.model_sha256 for each in product(*known)):
            yield f"round {record.round} names the models {record.model_sha256}, which nobody had"


def _digests_before(history: History, edge: Identity, number: int) -> set[str]:
    """The models that an edge server had after some gossip of the first rounds, or began with.

    One that joins begins with that of the first member of the round before.
    """
    found = {history.world.start.sha256().hex()}
    found |= {answer.digest for (i, at), answer in history.mixes().items() if i == edge and at[0] < number}
    for joined in range(1, number):
        before = history.members(joined - 1)
        if edge in history.members(joined) and edge not in before:
            found |= _digests_before(history, before[0], joined)
    return found


def _last_digests(history: History, record: RoundRecord) -> tuple[str, ...] | None:
    """The digests after the gossip that ends a round; None if the record was made without one of them."""
    last: dict[Identity, tuple[Position, str]] = {}
    for (edge, at), answer in history.mixes().items():
        if at[0] == record.round - 1:
            last[edge] = max(last.get(edge, (at, "")), (at, answer.digest))
    members = history.members(record.round - 1)
    found = tuple(last[edge][1] for edge in members if edge in last)
    return found if len(found) == len(members) and _digest_of(found) == record.model_sha256 else None


def _digest_of(digests: tuple[str, ...]) -> str:
    return sha256(b"".join(map(bytes.fromhex, digests))).hexdigest()


PROPERTIES: tuple[Callable[[History], Iterator[str]], ...] = (
    everybody_ends,
    one_leader_per_term,
    commands_of_the_newest_leader,
    votes_go_to_those_who_know_the_members,
    acknowledged_uploads_are_used,
    edge_rounds_happen_once,
    uploads_are_used_once,
    orders_are_carried_out_once,
    records_are_equal_everywhere,
    records_name_models,
    budgets_are_counted_once,
    changes_hold,
    models_are_those_of_the_simulator,
)


def find_violations(history: History) -> list[str]:
    """What is wrong with a history, with the names of the properties; empty if nothing is."""
    return [f"{each.__name__}: {words}" for each in PROPERTIES for words in each(history)]
