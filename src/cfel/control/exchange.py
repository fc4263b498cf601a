"""Planning as an exchange: a planner asks, clusters answer, and nothing else passes between them.

A planner is a generator (`Exchange`). It yields questions, all of one message, and is sent an answer to each.
It does not know who answers: a fleet in the same process (`answer_locally`), or edge servers that each answer
for their own devices. Every array of an answer has clusters as its last axis. A cluster's column is the same
wherever it is computed, so the answers of several parts are their columns side by side (`join_answers`).

A question is about a place: the devices of a fleet, with less time, or thinned out. A part that answers finds
the devices of a place again from its description.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from cfel.arrays import FloatArray, IndexArray
from cfel.control.curves import Fleet, Grid, Response, make_curve, respond_at

# Places, and responses of all devices to single prices, that are kept between questions.
_KEPT, _KEPT_RESPONSES = 4, 2
# 2³² divided by the golden ratio: its multiples, modulo 2³², are spread evenly however many they are.
_GOLDEN = 2654435769

Question = Any
Answer = Any
Found = TypeVar("Found")
AnyAnswer = TypeVar("AnyAnswer")
Exchange = Generator[tuple[Question, ...], tuple[Answer, ...], Found]
"""Yields questions, is sent their answers, returns what was found."""


@dataclass(frozen=True, slots=True)
class Place:
    """Some devices of a fleet.

    Attributes:
        makespan: seconds that they have at most.
        stride: one in so many devices; of a cluster with fewer, one or none.
    """

    makespan: float = np.inf
    stride: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class CurveQuestion:
    """Asks for the curve of a place; `ready` also for the seconds that the responses need."""

    place: Place
    grid: Grid
    ready: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class CurveAnswer:
    """Objective and joules, makespans × prices × clusters.

    `ready` has the seconds of the slowest device at full clock, or no rows where nobody asked.
    """

    objective: FloatArray
    joules: FloatArray
    ready: FloatArray


def ask(*questions: Question) -> Exchange[tuple[Any, ...]]:
    """Asks some questions in one message."""
    answers = yield questions
    return answers


def ask_together(exchanges: Sequence[Exchange[Found]]) -> Exchange[list[Found]]:
    """Takes part in several exchanges at once: one message carries the next questions of all."""
    found: dict[int, Found] = {}
    answers: dict[int, tuple[Answer, ...] | None] = dict.fromkeys(range(len(exchanges)))
    while answers:
        asked: dict[int, tuple[Question, ...]] = {}
        for number, answer in answers.items():
            try:
                each = exchanges[number]
                asked[number] = next(each) if answer is None else each.send(answer)
            except StopIteration as end:
                found[number] = end.value
        if not asked:
            break
        flat = yield tuple(question for questions in asked.values() for question in questions)
        answers, start = {}, 0
        for number, questions in asked.items():
            answers[number] = flat[start : start + len(questions)]
            start += len(questions)
    return [found[number] for number in range(len(exchanges))]


def answer_locally(exchange: Exchange[Found], answer: Callable[[Question], Answer]) -> Found:
    """Brings an exchange to its end with answers from this process."""
    try:
        questions = next(exchange)
        while True:
            questions = exchange.send(tuple(map(answer, questions)))
    except StopIteration as end:
        found: Found = end.value
        return found


def join_answers(parts: Sequence[AnyAnswer]) -> AnyAnswer:
    """The answer of all clusters, from those of neighbouring parts in their order."""
    joined: dict[str, Any] = {
        each.name: np.concatenate([getattr(part, each.name) for part in parts], axis=-1)
        for each in fields(parts[0])  # type: ignore[arg-type]
    }
    return type(parts[0])(**joined)


def cut_answer(answer: AnyAnswer, cluster: int) -> AnyAnswer:
    """One cluster's column of an answer."""
    column: dict[str, Any] = {
        each.name: getattr(answer, each.name)[..., cluster : cluster + 1]
        for each in fields(answer)  # type: ignore[arg-type]
    }
    return type(answer)(**column)


@dataclass(frozen=True, slots=True, eq=False)
class _Members:
    """The devices of a fleet in the order of clusters, and per cluster how many and where they begin."""

    devices: IndexArray
    count: IndexArray
    start: IndexArray

    @classmethod
    def of(cls, fleet: Fleet) -> "_Members":
        """Of every cluster."""
        count = np.bincount(fleet.cluster, minlength=fleet.clusters)
        return cls(np.argsort(fleet.cluster, kind="stable"), count, np.cumsum(count) - count)

    def thin_out(self, stride: int) -> IndexArray:
        """One in so many devices: of every cluster its first, which depends on its number, and so on."""
        first = _find_first(len(self.count), stride)
        taken = count_thinned(self.count.astype(np.float64), stride).astype(np.intp)
        before = np.cumsum(taken) - taken
        place = np.repeat(self.start + first - stride * before, taken)
        place += stride * np.arange(place.size)
        return np.sort(self.devices[place])


class FleetAnswers:
    """Answers for the devices of a fleet, or of a part of its clusters."""

    def __init__(self, fleet: Fleet) -> None:
        self._whole = fleet
        self._fleets: dict[Place, Fleet] = {}
        self._responses: dict[tuple[Place, float], Response] = {}

    def answer(self, question: CurveQuestion) -> CurveAnswer:
        """The curve of a place."""
        place, grid = question.place, question.grid
        fleet = self.find(place)
        curve, response = make_curve(fleet, grid)
        if place.stride == 1 and len(grid.makespan) == 1 and np.isinf(grid.makespan[0]):
            # The last ones of a search are those that clusters settle between.
            for number, price in enumerate(grid.price[0, :2].tolist()):
                _keep(self._responses, (place, price), response.pick(number), _KEPT_RESPONSES)
        ready = np.empty((0, 0, fleet.clusters))
        if question.ready:
            ready = fleet.find_ready(response, grid.price.shape)
        objective, joules = (np.ascontiguousarray(part) for part in (curve.objective, curve.joules))
        return CurveAnswer(objective, joules, ready)

    def find(self, place: Place) -> Fleet:
        """The devices of a place."""
        if place == Place():
            return self._whole
        if place not in self._fleets:
            _keep(self._fleets, place, self._make_fleet(place), _KEPT)
        return self._fleets[place]

    def respond(self, place: Place, price: float) -> Response:
        """The responses of a place's devices to one price."""
        if (place, price) not in self._responses:
            fleet = self.find(place)
            _keep(self._responses, (place, price), respond_at(fleet, price), _KEPT_RESPONSES)
        return self._responses[place, price]

    @cached_property
    def _members(self) -> _Members:
        return _Members.of(self._whole)

    def _make_fleet(self, place: Place) -> Fleet:
        if place.stride > 1:
            fleet = self.find(replace(place, stride=1))
            return fleet.take(self._members.thin_out(place.stride))
        return self._whole.at(np.array([place.makespan])).prepare()


def count_thinned(devices: FloatArray, stride: int) -> FloatArray:
    """How many devices of every cluster a thinned out place has, of so many."""
    return np.maximum(np.ceil((devices - _find_first(len(devices), stride)) / stride), 0.0)


def _find_first(clusters: int, stride: int) -> IndexArray:
    """Which device a sample takes first of every cluster, 0 … stride − 1.

    The numbers are spread evenly, so clusters that are smaller than the stride are left out in turn. A
    cluster's number depends on no other cluster, so that parts of a fleet can compute it.
    """
    turn = np.arange(clusters, dtype=np.uint64) * np.uint64(_GOLDEN) % np.uint64(2**32)
    return (turn * np.uint64(stride) >> np.uint64(32)).astype(np.intp)


def _keep(known: dict[Any, Any], key: object, value: object, most: int) -> None:
    """Keeps a value among the newest few."""
    known.pop(key, None)
    while len(known) >= most:
        del known[next(iter(known))]
    known[key] = value
