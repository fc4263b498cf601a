"""How the coordinator plans a large fleet: it asks edge servers about their own devices, and decides.

The planner is that of the simulator (`control.clusters`); its questions become `ask` commands, one per
exchange, to all edge servers at once. An edge server that is not there answers for nobody. Should one fail to
answer in the middle, the exchange begins anew without it.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from cfel.control.clusters import (
    Clusters,
    CountAnswer,
    CountQuestion,
    Decision,
    DivideQuestion,
    FleetQuestion,
    LeastQuestion,
    MeetQuestion,
    RankQuestion,
    SettleQuestion,
)
from cfel.control.exchange import Answer, Exchange, Found, Question, cut_answer, join_answers
from cfel.control.planning import negotiate_by_scheme
from cfel.control.scheme import Observation, State
from cfel.cost import EdgeRoundCost
from cfel.deployment.coordinator.calls import TermCalls
from cfel.deployment.coordinator.state import CoordinatorState, Position
from cfel.deployment.measurement.measured_rounds import reserve_overhead
from cfel.deployment.protocol.edge_requests import AskAnswer, AskCommand, ClusterAnswer, ClusterQuestion
from cfel.errors import UnreachableError
from cfel.rounds.estimates import mean_kept_energy
from cfel.rounds.kernel import FleetEstimates, observe
from cfel.world import World

_LOG = logging.getLogger(__name__)
_NAMES: Mapping[type, str] = {
    MeetQuestion: "meet",
    RankQuestion: "rank",
    LeastQuestion: "least",
    FleetQuestion: "fleet",
    SettleQuestion: "settle",
    DivideQuestion: "divide",
    CountQuestion: "count",
}


def wrap_question(question: Question) -> ClusterQuestion:
    """A question as the wire carries it."""
    return ClusterQuestion(**{_NAMES[type(question)]: question})


def unwrap_question(question: ClusterQuestion) -> Question:
    """The question that was wrapped."""
    return next(found for name in _NAMES.values() if (found := getattr(question, name)) is not None)


def wrap_answer(question: Question, answer: Answer) -> ClusterAnswer:
    """An answer as the wire carries it."""
    return ClusterAnswer(**{_NAMES[type(question)]: answer})


def _unwrap_answer(question: Question, answer: ClusterAnswer) -> Answer:
    name = _NAMES[type(question)]
    found = getattr(answer, name)
    if found is None:
        raise UnreachableError(f"a question {name!r} was answered with something else")
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Negotiated:
    """A decision, the scheme's next state, and what was known before."""

    decision: Decision
    state: State
    observation: Observation


class AskedClusters:
    """The edge servers that are asked about one edge round.

    Args:
        world: of its global round.
        edges: how they are called.
        at: the edge round.
        seconds: how long an answer may take.
        is_ahead: whether it is not next, but looked ahead to.
    """

    def __init__(
        self, world: World, edges: TermCalls, at: Position, seconds: float, *, is_ahead: bool = False
    ) -> None:
        self._world, self._edges, self._at = world, edges, at
        self._seconds, self._is_ahead = seconds, is_ahead
        self.present: dict[int, AskAnswer] = {}

    async def meet(self) -> None:
        """Finds out who is there."""
        self.present = await self._edges.command(self._make_command(()), self._seconds)

    def lacks_estimates(self, at: Position) -> bool:
        """Whether devices have to estimate σ² and G² before they are planned.

        At the beginning all are asked, again if an edge server or a coordinator was lost meanwhile. Later,
        one that has no estimates is taken to be like the others.
        """
        known = [each.is_estimated for each in self.present.values()]
        return not all(known) if at == (0, 0, 0) else not any(known)

    async def plan(self, state: CoordinatorState) -> Negotiated:
        """Plans the edge round with those that are there."""
        scheme = self._world.setting.scheme
        while True:
            observation = self.observe(state)
            try:
                found = await self._take_part(
                    negotiate_by_scheme(scheme, state.control.scheme, observation), observation
                )
            except UnreachableError as error:
                _LOG.warning("planning begins anew: %s", error)
                await self.meet()
                continue
            return Negotiated(*found, observation)

    async def count(self, negotiated: Negotiated) -> EdgeRoundCost:
        """What a decision costs, if all devices do what they are asked."""

        def ask() -> Exchange[CountAnswer]:
            answers = yield (CountQuestion(negotiated.decision),)
            found: CountAnswer = answers[0]
            return found

        cost = await self._take_part(ask(), negotiated.observation)
        nobody = np.full(len(cost.seconds), -1, dtype=np.int64)
        return EdgeRoundCost(cost.seconds, nobody, float(cost.joules.sum()))

    def observe(self, state: CoordinatorState) -> Observation:
        """What is known without any device's numbers: conditions are the model's, and are not looked at."""
        setting, control = self._world.setting, state.control
        devices, clusters = setting.fleet.devices, setting.fleet.clusters
        rows = max((len(each.kept_energy) for each in self.present.values()), default=0)
        sums, counts = np.zeros((rows, clusters)), np.zeros(clusters)
        for i, each in self.present.items():
            if each.kept_energy:
                sums[:, i], counts[i] = each.kept_energy, each.kept_devices
        nothing = np.zeros(devices)
        estimates = FleetEstimates(nothing, nothing, mean_kept_energy(sums, counts))
        control = replace(control, rounds_done=self._at[0], spent_joules=nothing)
        seen = observe(setting, control, self._at[1], setting.conditions(*self._at[:2]), estimates)
        seen = replace(seen, conditions=seen.conditions.without(np.ones(devices, dtype=bool)))
        if state.measured is None:
            return seen
        # Nothing sets clocks on devices yet, so slower ones must be neither planned nor charged.
        return replace(reserve_overhead(self._world, state.measured, seen), full_clocks=True)

    async def _take_part(self, exchange: Exchange[Found], observation: Observation) -> Found:
        """Brings an exchange to its end with the answers of edge servers."""
        nobody = Clusters(observation)
        try:
            questions = next(exchange)
            while True:
                questions = exchange.send(await self._ask(questions, nobody))
        except StopIteration as end:
            found: Found = end.value
            return found

    async def _ask(self, questions: tuple[Question, ...], nobody: Clusters) -> tuple[Answer, ...]:
        command = self._make_command(questions)
        answers = await self._edges.command(command, self._seconds, only=self.present)
        if lost := self.present.keys() - answers.keys():
            raise UnreachableError(f"edge servers {sorted(lost)} do not answer")
        return tuple(
            self._join(number, question, answers, nobody) for number, question in enumerate(questions)
        )

    def _join(
        self, number: int, question: Question, answers: Mapping[int, AskAnswer], nobody: Clusters
    ) -> Answer:
        """The answers of all clusters to a question, side by side."""
        empty = nobody.answer(question)
        columns = [
            _unwrap_answer(question, answers[i].answers[number]) if i in answers else cut_answer(empty, i)
            for i in range(self._world.setting.fleet.clusters)
        ]
        return join_answers(columns)

    def _make_command(self, questions: tuple[Question, ...]) -> AskCommand:
        wrapped = tuple(map(wrap_question, questions))
        return AskCommand(self._edges.term, self._at, wrapped, self._world.changes, self._is_ahead)
