"""What a new coordinator takes over: a state and records that more than one edge server may know.

Edge servers hand over what the last coordinators told them, and one of them may lie. A state that it alone
knows counts only if so many others are silent that a majority may know it; a crash must not lose what was
agreed on. How the state goes on is in `coordinator`, how records are proposed in `proposals`.
"""

import hashlib
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from cfel.deployment.coordinator.control_state import CoordinatorState
from cfel.deployment.positions import Position, after_gossip_step
from cfel.deployment.protocol.codec import encode
from cfel.deployment.protocol.coordinator_requests import NewestAnswer, ProposedRecord
from cfel.runlog import RoundRecord
from cfel.world import World

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Handover:
    """What edge servers handed over.

    Attributes:
        state: to continue from.
        others: states of single edge servers that may be one step ahead, the best supported first.
        records: of earlier terms, of each edge server that answered.
        lost: those among them of edge servers that lost one, or None.
        silent: how many edge servers have not answered.
        doubts: edge servers whose state or record cannot be true, and why.
    """

    state: CoordinatorState
    others: tuple[CoordinatorState, ...] = ()
    records: tuple[ProposedRecord, ...] = ()
    lost: tuple[ProposedRecord | None, ...] = ()
    silent: int = 0
    doubts: tuple[tuple[int, str], ...] = ()

    def find_plan(self, at: Position) -> CoordinatorState | None:
        """A state with a plan of this position that an edge server alone knows, and may be carrying out."""
        return next((each for each in self.others if each.position == at and each.plan is not None), None)

    def choose_record(self, own: RoundRecord) -> RoundRecord:
        """The record to propose: the newest for it that a majority may have stored, or else its own."""
        earlier = [each for each in self.records if each.record.round == own.round]
        unknown = self.silent + sum(each is None or each.record.round != own.round for each in self.lost)
        needed = len(self.state.digests) // 2 + 1 - unknown
        stored = [x for x in earlier if sum(x.record == other.record for other in earlier) >= needed]
        if not stored:
            return own
        found = max(stored, key=lambda each: each.term)
        _LOG.info("closes round %d with the record of term %d", own.round, found.term)
        return found.record


@dataclass(frozen=True, slots=True)
class _Claim:
    """A state, and who handed it over."""

    state: CoordinatorState
    holders: frozenset[int]


def has_begun(answers: Mapping[int, NewestAnswer], clusters: int) -> bool:
    """Whether there is, or may be, a state to take over."""
    known = any(each.state is not None for each in answers.values())
    lost = sum(each.is_lost for each in answers.values())
    # Where a majority has lost nothing and knows no state, no round can have been logged.
    return known or (lost > 0 and 2 * (len(answers) - lost) <= clusters)


def take_over(
    world: World, answers: Mapping[int, NewestAnswer], own: int, term: int, start: CoordinatorState
) -> Handover | None:
    """Chooses what to continue from.

    Args:
        world: what is run.
        answers: of a majority of edge servers, by number.
        own: the coordinator's edge server, which it trusts.
        term: the coordinator's.
        start: the state before the first round.

    Returns:
        None if no state can be chosen.
    """
    claims, clusters = _group(answers), world.setting.fleet.clusters
    silent = clusters - len(answers)
    unknown = silent + sum(each.is_lost and each.state is None for each in answers.values())
    chosen = [each for each in claims if _is_credible(world, each, claims, own, clusters, unknown)]
    if not chosen and claims and own in answers and answers[own].state is None and not answers[own].is_lost:
        # Nothing has happened yet that counts.
        chosen = [_Claim(start, frozenset((own,)))]
    if not chosen:
        return None
    best = max(chosen, key=lambda each: (each.state.recency, len(each.holders)))
    others = sorted((each for each in claims if each is not best), key=lambda each: -len(each.holders))
    proposals = {i: _of_earlier_term(each.proposal, term) for i, each in answers.items()}
    return Handover(
        best.state,
        tuple(each.state for each in others),
        tuple(each for each in proposals.values() if each is not None),
        tuple(proposals[i] for i, each in answers.items() if each.is_lost),
        silent,
        (*_doubt_states(world, best, others), *_doubt_records(answers, best.state, term)),
    )


def _of_earlier_term(proposal: ProposedRecord | None, term: int) -> ProposedRecord | None:
    return proposal if proposal is not None and proposal.term < term else None


def _group(answers: Mapping[int, NewestAnswer]) -> list[_Claim]:
    """The different states, each with those who handed it over."""
    found: dict[bytes, tuple[CoordinatorState, set[int]]] = {}
    for number, each in answers.items():
        if each.state is not None:
            key = hashlib.sha256(encode(each.state)).digest()
            found.setdefault(key, (each.state, set()))[1].add(number)
    return [_Claim(state, frozenset(holders)) for state, holders in found.values()]


def _is_credible(
    world: World, claim: _Claim, claims: Collection[_Claim], own: int, clusters: int, unknown: int
) -> bool:
    """Whether at least one honest edge server knows a state, or a majority may know it."""
    # Who is one step ahead has been where this state is.
    ahead = [each for each in claims if each is not claim and _is_next(world, claim.state, each.state)]
    support = len(claim.holders.union(*(each.holders for each in ahead)))
    # Of f + 1 holders one is honest if at most f lie. One may lie; of more edge servers f = (m − 1)//3, as in
    # Byzantine agreement, was chosen by hand.
    enough = max(2, (clusters - 1) // 3 + 1)
    return own in claim.holders or support >= enough or 2 * (len(claim.holders) + unknown) > clusters


def _is_next(world: World, state: CoordinatorState, other: CoordinatorState) -> bool:
    """Whether a state is at most one command ahead of another."""
    return state.recency < other.recency and other.position <= _next_position(world, state)


def _next_position(world: World, state: CoordinatorState) -> Position:
    at = state.position
    return (at[0], at[1] + 1, 0) if state.plan is not None else after_gossip_step(world, at)


def _doubt_states(world: World, best: _Claim, others: Iterable[_Claim]) -> list[tuple[int, str]]:
    found = []
    for claim in others:
        same, ahead = claim.state.recency == best.state.recency, claim.state.recency > best.state.recency
        if same or (ahead and not _is_next(world, best.state, claim.state)):
            reason = f"a state of {claim.state.position} that no other edge server has"
            found += [(number, reason) for number in claim.holders]
    return found


def _doubt_records(
    answers: Mapping[int, NewestAnswer], state: CoordinatorState, term: int
) -> list[tuple[int, str]]:
    found = []
    for number, each in answers.items():
        proposal = each.proposal
        if proposal is not None and proposal.term >= term:
            found.append((number, f"a record of term {proposal.term}, which has not begun"))
        elif proposal is not None and proposal.record.round > state.control.rounds_done + 2:
            found.append((number, f"a record of round {proposal.record.round}, which nobody has reached"))
    return found
