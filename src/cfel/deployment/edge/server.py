"""An edge server without its devices: where it is, what it does on commands, and how a run ends for it.

    estimate have the devices estimate σ² and G²              (l, r, s)
    plan     have the devices train, aggregate what arrived   (l, r, s) → (l, r + 1, 0)
    fetch    get the neighbours' models for a gossip step     (l, r, s)
    mix      average them with the weights given              (l, r, s) → (l, r, s + 1), or (l + 1, 0, 0)
    propose  store the record of the global round
    close    write the global round to the log
    stop     end with an error: the training of all devices diverged

A position (l, r, s) counts global rounds, edge rounds and gossip steps (`coordinator.state`). A state is on
the disk before anything is answered about it. A command may come twice, from the same coordinator or from its
successor. What was carried out is not repeated: its answer was stored and is given again. An edge round under
way has both callers wait for it.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from cfel.control.exchange import cut_answer
from cfel.control.scheme import RoundPlan
from cfel.deployment.coordinator.asking import unwrap_question, wrap_answer
from cfel.deployment.coordinator.changes import adopt_records
from cfel.deployment.coordinator.state import (
    CoordinatorState,
    Position,
    after_gossip_step,
    ends_global_round,
    gossip_is_next,
)
from cfel.deployment.edge.book import (
    CarriedOut,
    OwnRound,
    RoundView,
    adopt_entries,
    bound_measurements,
    find_stays,
    join_rows,
    list_estimates,
    list_used_rounds,
    note_estimates,
    note_round,
    view_round,
)
from cfel.deployment.edge.checks import is_usable
from cfel.deployment.edge.devices import DeviceAnswers, DeviceService
from cfel.deployment.edge.issued_models import IssuedModels
from cfel.deployment.edge.neighbours import NeighbourModels, merge_rounds
from cfel.deployment.edge.public_models import PublicModel
from cfel.deployment.edge.storage import EdgeDisk, EdgeLog, EdgeState
from cfel.deployment.host import DiskHealth, Host, write_until_done
from cfel.deployment.measurement.plausibility import Doubts
from cfel.deployment.parameters import DeploymentParameters
from cfel.deployment.payloads import EncodedModel, EncodedModels
from cfel.deployment.protocol.calls import Calls, Endpoint, OnRejection, serve
from cfel.deployment.protocol.device_requests import Confirmation, Round
from cfel.deployment.protocol.edge_requests import (
    AskAnswer,
    AskCommand,
    CloseCommand,
    Command,
    DeviceEntry,
    DeviceEstimates,
    DeviceResult,
    EdgeRoundSums,
    EntriesAnswer,
    EntriesRequest,
    EstimateAnswer,
    EstimateCommand,
    FetchAnswer,
    FetchCommand,
    JoinCommand,
    MeanMetricRequest,
    MixAnswer,
    MixCommand,
    ModelScores,
    NewestAnswer,
    NewestRequest,
    OrderCounts,
    PeerModelAnswer,
    PeerModelRequest,
    PlanAnswer,
    PlanCommand,
    ProposeCommand,
    ProposedRecord,
    RecordsAnswer,
    RecordsRequest,
    ReleaseRequest,
    StopCommand,
)
from cfel.deployment.publishing import PublishedModels, encode_published
from cfel.deployment.security.identity import Identity
from cfel.errors import DamagedError, InputError, RejectedError, UnreachableError
from cfel.learning.device_messages import DeviceOrder, DeviceReport
from cfel.learning.differences import find_issue_key, find_key
from cfel.learning.edge import mean_model, update_edge_model, weighted_model
from cfel.learning.evaluate import evaluate
from cfel.learning.local.workspace import Workspace
from cfel.learning.models.flat import FlatModel
from cfel.membership import FleetChange, Membership
from cfel.metric import Metric
from cfel.rounds.estimates import add_kept_energy, find_impossible
from cfel.rounds.kernel import DeviceWork, device_weights, find_late, is_over, make_order
from cfel.rounds.records import measure_each, take_means
from cfel.runlog import RoundRecord
from cfel.system.backhaul import Backhaul
from cfel.wording import format_joules, format_seconds, plural
from cfel.world import World

_LOG = logging.getLogger(__name__)
_FROM_OTHERS = (
    "It takes part again with the model of another edge server, in the next round. If all of them have lost "
    "theirs, restore one directory from a backup, or delete them all to begin the experiment anew"
)
_OLD_PLAN = (
    "a coordinator of an older version plans device by device, as is not done any more in so large a fleet: "
    "upgrade all edge servers"
)
_NO_OTHERS = (
    "There is no other edge server to take it from: restore {0} from a backup, or delete it to begin the "
    "experiment anew"
)

Admit = Callable[[Identity, int], Coroutine[Any, Any, None]]
"""Returns if an edge server leads a term, as far as known here; raises `StaleTermError` if not."""


class EdgeServer:
    """One edge server.

    Args:
        devices: where its devices get their orders.
        neighbours: fetches models of other edge servers.
        models: where its own models are kept encoded.
        health: whether its disk takes writes.
        admit: who may command.

    Attributes:
        whole: what is run, with all changes of the fleet that it knows of.
        log: its log.
        state: where it is.
        loss: how it lost its state, in words, until it has taken one from another edge server; else empty.
        commanded_at: when the last command came, by the event loop's clock.
        running: edge rounds under way.
        awaited: edge servers that do not know yet that the experiment is over.
        finished: set when the last round is in the log.
        released: set when all edge servers know of the end, except those `awaited`.
        stopped: set when the run has to end because the training of all devices diverged.
        on_rejection: called for devices with implausible estimates or measurements.
    """

    def __init__(
        self,
        world: World,
        deployment: DeploymentParameters,
        number: int,
        directory: Path,
        host: Host,
        devices: DeviceService,
        neighbours: NeighbourModels,
        models: EncodedModels,
        calls: Calls,
        health: DiskHealth,
        admit: Admit,
    ) -> None:
        self.whole, self.deployment, self.number, self.host = world, deployment, number, host
        self._devices, self._neighbours, self._models = devices, neighbours, models
        self._calls, self._health, self._admit = calls, health, admit
        self._files = EdgeDisk(host.disk, directory, world.start)
        self._public: PublicModel | None = None
        if world.differences is not None:
            key = partial(find_key, world.setting.seed, edge_server=number)
            self._public = PublicModel(world.differences, key, world.start, host.compute)
        self._issued: IssuedModels | None = None
        if world.downloads is not None:
            find = partial(find_issue_key, world.setting.seed, edge_server=number)
            self._issued = IssuedModels(world.downloads, find, world.start, models, host.compute)
            devices.find_steps = self._issued.find_steps
        self.loss = ""
        self.state = self._load(directory)
        self.log = EdgeLog(
            host.disk, directory, has_others=self._has_others, kept_plans=deployment.kept_plans
        )
        self._heard_rounds = 0  # logged by others
        self._on_change: Callable[[], None] = lambda: None
        self._published = PublishedModels(host.disk, directory, deployment.published_models)
        self.commanded_at = asyncio.get_running_loop().time()
        self._phase = "waiting"
        # Held by the command that is carried out.
        self._busy = asyncio.Lock()
        self.running: dict[Position, asyncio.Task[PlanAnswer]] = {}
        self._states: dict[Position, CoordinatorState] = {}
        self._workspace: Workspace | None = None
        # Where a fleet is planned by clusters: what it sees of its devices, whose entries it has fetched,
        # and devices that have diverged since one of them last answered an order.
        self._view: tuple[Position, object, RoundView] | None = None
        self._adopted = 0
        self._diverged: set[int] = set()
        self.on_rejection: OnRejection = lambda _caller, _method, _reason: None
        self._doubts = Doubts(deployment.quarantine_after, self._on_quarantine)
        self.awaited: tuple[int, ...] = ()
        self.finished, self.released, self.stopped = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.learn(self.log.records)
        if self.log.records and _ends(self.whole, self.log.records[-1]):
            self.finished.set()

    async def learn_from(self, other: Identity) -> None:
        """Learns of changes that were logged while it was missing: it may have been removed meanwhile.

        Raises:
            DeploymentError: the other one cannot be reached, or rejects.
        """
        found = await self._fetch_records(other)
        missed = [each for each in found if each.round > self.log.last_round]  # it may have grown meanwhile
        if missed and _ends(adopt_records(self.whole, missed), missed[-1]):
            missed.pop()  # what the last record changes never holds
        if missed:
            self._heard_rounds = missed[-1].round
            self.learn((*self.log.records, *missed))
            self._on_change()

    @property
    def world(self) -> World:
        """The world of the global round that it is in."""
        return self.whole.at(self.state.position[0])

    @property
    def membership(self) -> Membership:
        """Who belongs to the fleet in the global round that it is in; at the end, in the last one."""
        return self.whole.membership_at(self._last if self.finished.is_set() else self.state.position[0])

    @property
    def members(self) -> Membership:
        """Who belongs to the fleet by all that a majority has agreed on, from the next round on.

        At the end there is no next round: nobody comes or goes any more.
        """
        newest = max(self.log.last_round, self._heard_rounds, self.state.position[0])
        return self.whole.membership_at(self._last if self.finished.is_set() else newest)

    @property
    def has_left(self) -> bool:
        """Whether it has been removed, by all that a majority has agreed on."""
        removed = any((each.what, each.edge) == ("remove edge", self.number) for each in self.whole.changes)
        return removed and self.number not in self.members.edges

    @property
    def _last(self) -> int:
        return max(self.log.last_round - 1, 0)

    @property
    def _has_others(self) -> bool:
        return len(self.whole.eras[-1].membership.edges) > 1

    def watch_changes(self, on_change: Callable[[], None]) -> None:
        """Calls a function now, and whenever the members of the fleet may have changed."""
        self._on_change = on_change
        on_change()

    def learn(self, records: Sequence[RoundRecord], changes: Sequence[FleetChange] = ()) -> None:
        """Takes over the changes of the fleet in records of the log, or in a coordinator's state."""
        known = self.whole
        if len(changes) > len(known.changes):
            known = known.with_changes(changes)
        else:
            known = adopt_records(known, records)
        if known is not self.whole:
            for change in known.changes[len(self.whole.changes) :]:
                _LOG.info("from round %d on: %s", change.round, change.describe())
            self.whole = known
            self._on_change()

    def _load(self, directory: Path) -> EdgeState:
        """The state saved last; one that is damaged is taken from another edge server, if there is one."""
        try:
            return self._files.load()
        except DamagedError as error:
            if not self._has_others:
                raise DamagedError(f"{error}. {_NO_OTHERS.format(directory)}") from error
            self.loss = f"{error}. {_FROM_OTHERS}"
            _LOG.error("%s", self.loss)
            return self._files.begin_anew()

    @property
    def phase(self) -> str:
        """What it is doing, in the words of `cfel.status`."""
        return "finished" if self.finished.is_set() else self._phase

    @property
    def newest_state(self) -> CoordinatorState | None:
        """The newest state of a coordinator: that of an edge round under way, or the stored one.

        A successor takes the plan over from here, and so asks the other edge servers for the same.
        """
        known = [*self._states.values(), self.state.coordinator_state]
        return max((each for each in known if each is not None), key=lambda each: each.recency, default=None)

    def endpoints(self) -> list[Endpoint]:
        """What other edge servers may call."""
        return [
            serve(NewestRequest, self.newest),
            serve(JoinCommand, self.join),
            serve(EntriesRequest, self.give_entries),
            serve(AskCommand, self.ask),
            serve(EstimateCommand, self.estimate),
            serve(PlanCommand, self.plan),
            serve(FetchCommand, self.fetch),
            serve(MixCommand, self.mix),
            serve(ProposeCommand, self.keep_proposal),
            serve(CloseCommand, self.write_round),
            serve(StopCommand, self.stop),
            serve(PeerModelRequest, self.give_model),
            serve(RecordsRequest, self.find_records),
            serve(MeanMetricRequest, self.evaluate_mean),
            serve(ReleaseRequest, self.release),
        ]

    async def _admit_command(self, caller: Identity, command: Command[object]) -> None:
        await self._admit(caller, command.term)
        # The coordinator would wait for an answer until its deadline, in every round.
        if self._health.is_stuck:
            raise RejectedError("its disk takes no writes; it takes part again when there is room")
        self.commanded_at = asyncio.get_running_loop().time()

    async def newest(self, caller: Identity, request: NewestRequest) -> NewestAnswer:
        """Returns where this server is, and the newest state of a coordinator it has seen."""
        await self._admit(caller, request.term)
        connected = tuple(self._devices.list_connected())
        return NewestAnswer(
            self.state.position,
            self.newest_state,
            () if self._by_clusters else connected,
            bool(self.loss) or self.log.proposals.is_lost,
            self.log.newest_proposal,
            len(connected) if self._by_clusters else 0,
        )

    async def join(self, caller: Identity, command: JoinCommand) -> Confirmation:
        """Takes the log, and the model that another edge server has at the start of this global round."""
        await self._admit_command(caller, command)
        await self._fetch_missed_rounds(caller, command.position[0])
        async with self._busy:
            if self.state.position >= command.position:
                return Confirmation()
        found = await self._neighbours.fetch(
            command.term, command.position, [command.model_of], self.state.model
        )
        if command.model_of not in found:
            raise RejectedError(f"has no model of edge server {command.model_of} yet")
        async with self._busy:
            if self.state.position < command.position:
                model = found[command.model_of]
                await self._save(self._take_model(command.position, model))
        return Confirmation()

    def _take_model(self, at: Position, model: FlatModel) -> EdgeState:
        """Its state at a position, with another edge server's model."""
        used = merge_rounds(self.state.last_used_rounds, self._neighbours.last_used_rounds)
        return replace(
            self.state,
            position=at,
            model=model,
            previous_model=model,
            last_used_rounds=used,
            public=None if self._public is None else model,
            issued=None if self._issued is None else model,
        )

    # Its own devices, where a fleet is planned by clusters

    @property
    def _by_clusters(self) -> bool:
        return self.whole.setting.by_clusters

    async def give_entries(self, caller: Identity, request: EntriesRequest) -> EntriesAnswer:
        """What it knows of devices that another edge server has now."""
        del caller
        book, used = self.state.book, self.state.last_used_rounds
        known = {n: book.get(n, DeviceEntry()) for n in request.devices if n in book or n in used}
        return EntriesAnswer(
            {
                n: replace(each, last_used_round=_latest(each.last_used_round, used.get(n)))
                for n, each in known.items()
            }
        )

    async def _adopt_entries(self, number: int) -> None:
        """Fetches what is known of devices that have come to it, from the edge servers that had them."""
        if not self._by_clusters or number <= self._adopted:
            return
        stays = find_stays(self.whole, self.number, number, self.state.book)
        if stays:
            members = [i for i in self.whole.membership_at(number).edges if i != self.number]
            found = await self._neighbours.fetch_entries(
                {n: each.came_from for n, each in stays.items()}, members
            )
            async with self._busy:
                await self._save(replace(self.state, book=adopt_entries(self.state.book, stays, found)))
        if not find_stays(self.whole, self.number, number, self.state.book):
            self._adopted = number

    def _view_round(self, at: Position) -> RoundView:
        """What it sees of its devices before an edge round; the same until its book changes."""
        known, book = self._view, self.state.book
        if known is not None and known[0] == at and known[1] is book:
            return known[2]
        left_out, measures = self._doubts.find_quarantined(), self._devices.measures
        world = self.whole.at(at[0])
        view = view_round(world, self.number, book, at, left_out, measures=measures)
        if not view.conditions.available.any():
            # All are absent: those that are connected get another chance.
            there = self._devices.list_plannable()
            present = {n: replace(each, is_absent=False) if n in there else each for n, each in book.items()}
            return view_round(world, self.number, present, at, left_out, measures=measures)
        self._view = at, book, view
        return view

    async def ask(self, caller: Identity, command: AskCommand) -> AskAnswer:
        """Answers questions about its own devices."""
        await self._admit_command(caller, command)
        self.learn((), command.changes)
        if not command.is_ahead:
            await self._catch_up(command.position)
            if not command.questions:
                await self._adopt_entries(command.position[0])
        asked = [unwrap_question(each) for each in command.questions]

        def answer() -> AskAnswer:
            setting, clusters = self.whole.at(command.position[0]).setting, None
            known = list_estimates(self.state.book, setting.fleet.devices)
            sums, counts = add_kept_energy(setting, known)
            if asked:
                clusters = self._view_round(command.position).clusters
            return AskAnswer(
                tuple(
                    wrap_answer(each, cut_answer(clusters.answer(each), self.number))
                    for each in asked
                    if clusters is not None
                ),
                any(each is not None for each in known),
                tuple(sums[:, self.number].tolist()),
                int(counts[self.number]),
            )

        return await self.host.compute.run(answer)

    async def _estimate_own(self, at: Position) -> EstimateAnswer:
        """Has its devices estimate σ² and G², and keeps what they found."""
        view = await self.host.compute.run(lambda: self._view_round(at))
        ones, available = np.ones(len(view.conditions.available)), view.conditions.available.tolist()
        orders = await self._make_orders(at, available, RoundPlan(ones, ones), 1.0)
        answers = await self._devices.collect_estimates(orders)
        found = [
            DeviceEstimates(n, estimates, answers.measured.get(n), answers.answer_seconds[n])
            for n, estimates in answers.values.items()
        ]
        book = self.state.book
        if self._devices.measures:
            spread = self.deployment.report_spread
            book, found, bounded = bound_measurements(self.world, book, at, found, None, spread)
            self._reject(bounded.reasons)
        await self._save(replace(self.state, book=note_estimates(book, found)))
        counts = self._count_orders(len(orders), len(found), answers.diverged)
        return EstimateAnswer((), (), counts)

    def _count_orders(self, asked: int, answered: int, diverged: Sequence[int]) -> OrderCounts:
        self._diverged = set() if answered else self._diverged | set(diverged)
        return OrderCounts(asked, answered, len(self._diverged))

    def _reject(self, reasons: Sequence[tuple[int, str]]) -> None:
        for device, reason in reasons:
            self.on_rejection(Identity("device", device), "measurements", reason)

    def _on_quarantine(self, device: int) -> None:
        self.on_rejection(
            Identity("device", device), "reports", "left out after repeated implausible reports"
        )

    def _note_round(
        self, state: EdgeState, done: CarriedOut, view: RoundView
    ) -> tuple[EdgeState, EdgeRoundSums]:
        """What an edge round leaves in its book and in its log, and what the coordinator hears of it."""
        book, implausible, at = state.book, set[int](), done.at
        if self._devices.measures:
            spread, steps = self.deployment.report_spread, done.plan.local_steps
            book, results, bounded = bound_measurements(
                self.world, book, at, list(done.results), steps, spread
            )
            self._reject(bounded.reasons)
            done, implausible = replace(done, results=results), {device for device, _ in bounded.reasons}
        recent = {place: each for place, each in state.own_rounds.items() if place[0] >= at[0] - 1}
        earlier = (each.rows.device.tolist() for place, each in recent.items() if place[0] == at[0])
        noted = note_round(
            self.world, self.number, book, view, done, {n for devices in earlier for n in devices}
        )
        arrived = {each.device for each in done.results}
        self._doubts.add(arrived, implausible | self._judge_estimates(noted.book, arrived))
        own = {**recent, at: noted.own}
        sums = EdgeRoundSums(noted.totals, noted.device_seconds, OrderCounts(0, 0, 0))
        return replace(state, book=noted.book, own_rounds=own), sums

    def _judge_estimates(self, book: Mapping[int, DeviceEntry], arrived: set[int]) -> set[int]:
        """Reports whose σ² and G², among those that have just arrived, no honest device has."""
        known = list_estimates(book, self.world.setting.fleet.devices)
        small = self.world.setting.small_batches is not None
        found = arrived.intersection(find_impossible(known, small_batches=small))
        for device in sorted(found):
            self.on_rejection(Identity("device", device), "estimates", "its σ² and G² are not plausible")
        return found

    # Edge rounds

    async def estimate(self, caller: Identity, command: EstimateCommand) -> EstimateAnswer:
        """Has devices estimate σ² and G² at the edge model."""
        await self._admit_command(caller, command)
        self.learn((), command.changes)
        await self._catch_up(command.position)
        if not self._by_clusters:
            self._check_fleet("available", command.available)
        async with self._busy:
            self._check_position(command.position)
            self._phase = "planning"
            if self._by_clusters:
                return await self._estimate_own(command.position)
            # Orders need a ρ and a θ; an estimate uses neither.
            ones = np.ones(self.world.setting.fleet.devices)
            plan = RoundPlan(ones, ones)
            orders = await self._make_orders(command.position, command.available, plan, 1.0)
            answers = await self._devices.collect_estimates(orders)
            found = tuple(
                DeviceEstimates(n, estimates, answers.measured.get(n), answers.answer_seconds[n])
                for n, estimates in answers.values.items()
            )
            return EstimateAnswer(found, answers.diverged)

    async def plan(self, caller: Identity, command: PlanCommand) -> PlanAnswer:
        """Carries out an edge round, waits for the one under way, or returns the stored answer."""
        await self._admit_command(caller, command)
        at, plan = command.position, command.state.plan
        if not command.state.is_planned or command.state.position != at:
            raise RejectedError(f"state: has no plan of {at}")
        if self._by_clusters and plan is not None:
            raise RejectedError(f"state.plan: {_OLD_PLAN}")
        self.learn((), command.state.changes)
        if at not in self.running and at not in self.state.reports:
            await self._catch_up(at)
            if plan is not None:
                self._check_fleet("state.plan.rho", plan.rho)
        if at in self.state.reports:
            return self.state.reports[at]
        # Another copy of the command may have begun the round while this one caught up.
        if at not in self.running:
            task = asyncio.create_task(self._run_edge_round(at, command.state))
            task.add_done_callback(lambda _: self._forget(at))
            self.running[at], self._states[at] = task, command.state
        # Should this coordinator die, its successor asks again and finds the round under way.
        return await asyncio.shield(self.running[at])

    def _forget(self, at: Position) -> None:
        self.running.pop(at, None)
        self._states.pop(at, None)

    async def _settle(
        self, at: Position, state: CoordinatorState
    ) -> tuple[RoundPlan, Sequence[bool], RoundView | None]:
        """The plan of an edge round, who takes part, and what was seen of its own devices."""
        if state.plan is not None:
            return state.plan, state.available, None
        decision = state.decision
        if decision is None:
            raise RejectedError(f"state: has no plan of {at}")

        def settle() -> tuple[RoundPlan, Sequence[bool], RoundView]:
            view = self._view_round(at)
            plan = view.settle(decision)
            plan = replace(plan, speed=None) if self._devices.measures else plan
            taking_part = plan.leave_out(view.conditions).available & (self.number in state.asked)
            return plan, taking_part.tolist(), view

        return await self.host.compute.run(settle)

    async def _run_edge_round(self, at: Position, coordinator_state: CoordinatorState) -> PlanAnswer:
        async with self._busy:
            self._check_position(at)
            self._phase = "training"
            state, used = self.state, coordinator_state.used
            rate = self.world.training.local.find_rate(used)
            plan, available, view = await self._settle(at, coordinator_state)
            orders = await self._make_orders(at, available, plan, rate)
            # A device that has moved here was used by another edge server before.
            moved = coordinator_state.last_used_rounds
            moved = merge_rounds(moved, list_used_rounds(state.book))
            latest = {n: _latest(state.last_used_rounds.get(n), moved.get(n)) for n in orders}
            used_rounds = {n: each for n, each in latest.items() if each is not None}
            answers = await self._devices.collect_reports(orders, used_rounds)
            late = self._find_late(at, plan, answers.values)
            reports = [report for n, report in answers.values.items() if n not in late]
            model = await self._aggregate(state.model, plan, reports, used)
            # Each update passes, but their sum does not. The round counts as one without devices.
            if model is None:
                _LOG.error("the updates of %s do not add up to numbers of use", sorted(answers.values))
                model, answers = state.model, replace(answers, values={}, measured={})
            plannable = tuple(self._devices.list_plannable())
            results = _list_results(plan, answers)
            answer = PlanAnswer(results, plannable, answers.seconds, answers.diverged)
            if view is not None:
                done = CarriedOut(at, plan, np.array(available), results, plannable, answers.seconds)
                state, sums = await self.host.compute.run(partial(self._note_round, state, done, view))
                counts = self._count_orders(len(orders), len(results), answers.diverged)
                sums = msgspec.structs.replace(sums, counts=counts)
                answer = PlanAnswer((), (), answers.seconds, (), sums)
            taken = [result.device for result in results if result.device not in late]
            # Where nobody took part the issue is void, as where the edge round was missed altogether: a log
            # does not tell the two apart.
            if results:
                state = replace(state, issued=await self._issue(state))
            await self._advance(_after_edge_round(state, at, coordinator_state, model, answer, taken))
            return answer

    def _find_late(self, at: Position, plan: RoundPlan, reports: Mapping[int, DeviceReport]) -> set[int]:
        """Devices that were late by the experiment's model; where clocks measure, real time counts."""
        if self._devices.measures:
            return set()
        setting = self.world.setting
        work = [DeviceWork(n, each.steps, each.update.wire_bits, each.loss) for n, each in reports.items()]
        return find_late(setting, setting.conditions(*at[:2]), plan, work)

    async def _aggregate(
        self, model: FlatModel, plan: RoundPlan, reports: Sequence[DeviceReport], used: float
    ) -> FlatModel | None:
        """The new model; None if it would not be usable, though each update is."""
        samples = {report.device: report.samples for report in reports}
        world = self.world
        weights = device_weights(world.setting, plan, samples)
        share, local = len(reports) / max(len(self._devices.devices), 1), world.training.local
        rate = local.learning_rate * local.find_rate(used)

        def add_up() -> FlatModel | None:
            made = update_edge_model(
                model, reports, weights, world.edge_rules, share=share, rate=rate, used=used
            )
            return made if is_usable(made) else None

        return await self.host.compute.run(add_up)

    async def _issue(self, state: EdgeState) -> FlatModel | None:
        """The model that devices train from next, where they fetch differences."""
        return None if self._issued is None else await self._issued.issue(state)

    async def _make_orders(
        self, at: Position, available: Sequence[bool], plan: RoundPlan, rate: float
    ) -> dict[int, DeviceOrder]:
        """Orders for the available devices of this edge server."""
        model = await self._issue(self.state) or self.state.model
        speed = np.ones(len(plan.rho)) if plan.speed is None else plan.speed
        asked = list(zip(plan.rho.tolist(), plan.theta.tolist(), speed.tolist(), strict=True))
        setting, steps = self.world.setting, plan.local_steps
        try:
            orders = {}
            for n in (n for n in self._devices.devices if available[n]):
                rho, theta, pace = asked[n]
                orders[n] = make_order(setting, *at[:2], n, rho, theta, model, rate, steps, pace)
        except InputError as error:
            raise RejectedError(str(error)) from error
        return orders

    def _check_fleet(self, name: str, values: Sequence[object] | np.ndarray[Any, Any]) -> None:
        devices = self.world.setting.fleet.devices
        if len(values) != devices:
            raise RejectedError(f"{name}: {len(values)} entries for {devices} devices")

    # Gossip

    async def fetch(self, caller: Identity, command: FetchCommand) -> FetchAnswer:
        """Fetches others' models for a gossip step."""
        await self._admit_command(caller, command)
        state, at = self.state, command.position
        if at < state.position:
            # Carried out under an earlier coordinator, or a late copy of the command.
            rows = state.gossip.rows if state.gossip is not None and state.has_mixed(at) else None
            return FetchAnswer(state.position, (), rows, self._tell_used())
        self._phase = "gossip"
        active = self._list_neighbours(self.world.setting.backhaul_at(*at))
        wanted = [j for j in active if j in command.present]
        models = await self._fetch_models(command, wanted)
        return FetchAnswer(self.state.position, tuple(sorted(models)), None, self._tell_used())

    def _tell_used(self) -> dict[int, Round]:
        """Per device, its last upload in the model here, for a coordinator that keeps account of devices."""
        return {} if self._by_clusters else dict(self.state.last_used_rounds)

    async def mix(self, caller: Identity, command: MixCommand) -> MixAnswer:
        """Averages its model with others', or returns the stored answer if it has done so."""
        await self._admit_command(caller, command)
        self.learn((), command.state.changes)
        at = command.position
        weights = {j: weight for j, weight in enumerate(command.rows[self.number]) if weight}
        fetched: dict[int, FlatModel] = {}
        # Outside the lock, because fetching may take as long as `gossip_seconds`.
        if self.state.find_mix(at) is None:
            wanted = [j for j in weights if j != self.number]
            fetched = await self._fetch_models(command, wanted)
        async with self._busy:
            state = self.state
            if (known := state.find_mix(at)) is not None:
                return known
            self._check_position(at)
            own = state.model if self._public is None else await self._public.publish(state, at)
            models = {**fetched, self.number: own}
            if missing := sorted(weights.keys() - models.keys()):
                raise RejectedError(f"models of edge servers {missing} are missing")
            mixed, answer = await self.host.compute.run(lambda: self._average(models, weights, command))
            after = replace(
                state,
                position=after_gossip_step(self.world, at),
                model=mixed,
                previous_model=state.model,
                last_used_rounds=merge_rounds(state.last_used_rounds, self._neighbours.last_used_rounds),
                gossip=answer,
                coordinator_state=command.state,
                public=None if self._public is None else own,
                # A successor may ask again for any gossip step since the last record.
                earlier_mixes=tuple(each for each in state.mixes if each.position[0] == at[0]),
            )
            await self._advance(after)
            # Models of a step are large; none of them is needed again.
            self._neighbours.forget()
        return answer

    async def _fetch_models(
        self, command: FetchCommand | MixCommand, wanted: Iterable[int]
    ) -> dict[int, FlatModel]:
        """The models, or public models, of others for a gossip step."""
        is_public = self._public is not None
        return await self._neighbours.fetch(
            command.term, command.position, wanted, self.state.model, public=is_public
        )

    def _average(
        self, models: Mapping[int, FlatModel], weights: Mapping[int, float], command: MixCommand
    ) -> tuple[FlatModel, MixAnswer]:
        mixed = weighted_model(models, weights)
        if self._public is not None:
            mixed = self._public.differences.move(self.state.model, models[self.number], mixed)
        if ends_global_round(self.world, command.position):
            mixed = self.world.edge_rules.add_to_average(mixed)
        if not mixed.is_finite():
            raise RejectedError("the average of these models is not finite")
        answer = MixAnswer(command.position, command.rows, mixed.sha256().hex(), None)
        if not command.evaluate:
            return mixed, answer
        scores = self._evaluate(mixed, self._devices.devices)
        return mixed, msgspec.structs.replace(answer, **msgspec.structs.asdict(scores))

    def _evaluate(self, model: FlatModel, devices: Sequence[int]) -> ModelScores:
        """Evaluates a model on the test set, for these devices, too; not to be called on the event loop."""
        world = self.world
        if self._workspace is None:
            self._workspace = Workspace(world.task, world.training, world.compress)
        model = world.edge_rules.read_average(model)
        found = evaluate(model, self._workspace, world.evaluation.samples or None, world.setting.seed)
        each: tuple[float, ...] = ()
        if world.evaluation.device_accuracy != "never":
            each = tuple(measure_each(world, devices, [found.per_sample] * len(devices)).tolist())
        return ModelScores(found.metric, take_means(found), each)

    async def give_model(self, caller: Identity, request: PeerModelRequest) -> PeerModelAnswer:
        """Returns a part of its model before a gossip step, or of the present one if no step is named."""
        del caller
        if self.loss:
            raise RejectedError("has lost its state, and has no model yet")
        state = self.state
        encoded = await self._encode(request)
        if request.sha256 not in (None, encoded.sha256):
            raise RejectedError(f"is at {state.position}, and has another model by now")
        part = await self._models.part(encoded.body, request.offset, request.most_bytes)
        # Who takes the model may be the only one who knows what is in it.
        used = {} if request.offset else dict(state.last_used_rounds)
        return PeerModelAnswer(state.position, encoded.sha256, part, used)

    async def _encode(self, request: PeerModelRequest) -> EncodedModel:
        if not request.public:
            return await self._models.get(self._choose_model(request.position))
        if self._public is None or request.position is None:
            raise RejectedError("public: has a public model only of gossip steps, where differences are sent")
        return await self._public.encode(self.state, request.position, request.known)

    def _choose_model(self, at: Position | None) -> FlatModel:
        if at is None or self.state.position == at:
            return self.state.model
        if self.state.has_mixed(at):
            return self.state.previous_model
        raise RejectedError(f"is at {self.state.position}, has no model of {at}")

    async def evaluate_mean(self, caller: Identity, request: MeanMetricRequest) -> ModelScores:
        """Evaluates the mean of all edge models that can be fetched, every device counting alike."""
        del caller, request
        at = self.state.position
        # The round that has just been mixed, with the members that it had.
        fleet = self.whole.at(max(at[0] - (at[1:] == (0, 0)), 0)).setting.fleet
        models = await self._neighbours.fetch_all_present(fleet.list_edges())
        return await self.host.compute.run(
            lambda: self._evaluate(mean_model(fleet.sizes, models), fleet.list_members())
        )

    # Where it is

    def _list_neighbours(self, backhaul: Backhaul) -> list[int]:
        """Edge servers that it gossips with."""
        if self.number >= backhaul.clusters:
            return []
        row = backhaul.weights[self.number]
        return [j for j in np.flatnonzero(row).tolist() if j != self.number]

    def _check_position(self, at: Position) -> None:
        if self.state.position != at:
            raise RejectedError(f"is at {self.state.position}, not at {at}")

    async def _catch_up(self, at: Position, *first: int, records: Sequence[RoundRecord] = ()) -> None:
        """Moves to a position that the others have reached without this edge server.

        After a gossip step missed it keeps its model, as gossip among the others assumed. It takes that of
        another one, those named first or a neighbour, after a longer absence, when its own is out of date;
        and if it has lost devices, also with `records` that it is about to log: they may send what is in its
        own again, as nobody else knows of that.

        Raises:
            RejectedError: none of them can be reached.
        """
        async with self._busy:
            if self.state.position >= at:
                return
            # One gossip step behind: the others averaged as if this model had stayed the same.
            was_member = self.number in self.membership.edges
            is_current = was_member and at[0] - self.state.position[0] <= 1
            is_current = is_current and not self._loses_devices(at[0], records)
            if not self.loss and is_current:
                await self._save(replace(self.state, position=at))
                return
            neighbours = self._list_neighbours(self.whole.at(at[0]).setting.backhaul)
            candidates = [i for i in dict.fromkeys((*first, *neighbours)) if i != self.number]
            model = await self._neighbours.fetch_any_present(candidates, at[0])
            await self._save(self._take_model(at, model))

    def _loses_devices(self, global_round: int, records: Sequence[RoundRecord]) -> bool:
        """Whether devices that it has now may have another edge server in a later round, or none."""
        if any(each.round > self.log.last_round + 1 for each in records):
            return True  # it has missed a record, which may say so
        then = adopt_records(self.whole, records).membership_at(global_round)
        return not set(self.membership.list_devices(self.number)) <= set(then.list_devices(self.number))

    async def _advance(self, state: EdgeState) -> None:
        """Takes a step: saves the new state, and lets devices fetch its model if training comes next."""
        # Devices may fetch the model while it is being written: they start no round before the command comes.
        await asyncio.gather(self._save(state), self._announce(state))
        self._phase = "waiting"

    async def _save(self, state: EdgeState) -> None:
        """Makes a state durable, and the present one."""
        await self._write("state", lambda: self._files.save(state))
        self.state = state
        if self.loss:
            _LOG.warning("has a state again, at %s", state.position)
        self.loss = ""
        self._on_change()

    async def _announce(self, state: EdgeState) -> None:
        at = state.position
        if at[0] < self.world.setting.rounds.global_rounds and not gossip_is_next(self.world, at):
            await self._devices.announce(await self._issue(state) or state.model)

    async def _write(self, what: str, function: Callable[[], None]) -> None:
        await write_until_done(self.host.compute, self._health, what, function)

    # The log, and the end

    async def keep_proposal(self, caller: Identity, command: ProposeCommand) -> Confirmation:
        """Keeps the record of a round that is about to be logged."""
        await self._admit_command(caller, command)
        self.log.check(command.record)
        proposal = ProposedRecord(command.term, command.record)
        # A successor that asks while this is being written must hear of it, so it counts from here on.
        self.log.proposals.take(proposal)
        await self._write("proposal", lambda: self.log.proposals.save(proposal))
        return Confirmation()

    async def write_round(self, caller: Identity, command: CloseCommand) -> Confirmation:
        """Writes a finished global round; fetches rounds that it missed first."""
        await self._admit_command(caller, command)
        self.log.check(command.record)
        # The state is never behind the log: the model at the end belongs to the last record.
        # One that joins with this record takes its model when the next round begins.
        if command.last or self.number in self.whole.membership_at(command.record.round - 1).edges:
            await self._catch_up((command.record.round, 0, 0), caller.number, records=[command.record])
        await self._fetch_missed_rounds(caller, command.record.round - 1)
        own = self._find_counted(command)
        plans = command.plans or join_rows(command.record.round, [each.rows for each in own])
        losses = [loss for each in own for loss in each.losses]
        await self._write("log", lambda: self.log.write(command.record, plans, losses))
        if command.last:
            self.finished.set()
        self.learn([command.record])
        # While those that leave are still there.
        await self._adopt_entries(command.record.round)
        _LOG.info("%s", describe_round(self.log.records[-1], self.world.setting.metrics[0]))
        if command.last:
            _LOG.info("the experiment is over")
        elif self.deployment.publishes(command.record.round):
            await self.publish()
        return Confirmation()

    def _find_counted(self, command: CloseCommand) -> list[OwnRound]:
        """The edge rounds of its own devices in a global round, as far as the coordinator heard of them."""
        own = {r for r, edges in enumerate(command.counted) if self.number in edges}
        rounds = self.state.own_rounds.items()
        return [each for at, each in rounds if at[0] == command.record.round - 1 and at[1] in own]

    async def publish(self) -> None:
        """Publishes its model after the round logged last."""
        number, model = self.log.last_round, self.state.model
        # Of a personal model, an edge server has a part only; and a late command finds a later model.
        if self.world.new_device.memory or self.state.position != (number, 0, 0):
            return
        content = await self.host.compute.run(lambda: encode_published(self.world, model))
        await self._write("published model", lambda: self._published.publish(number, content))

    async def _fetch_missed_rounds(self, caller: Identity, last_round: int) -> None:
        """Fetches rounds that it missed; the coordinator, which may be itself, may have missed them, too."""
        known = {*self.members.edges, caller.number} - {self.number}
        others = [Identity("edge", i) for i in sorted(known)]
        for other in sorted(others, key=lambda each: each != caller):
            if self.log.last_round >= last_round:
                return
            try:
                missed = await self._fetch_records(other)
            except (RejectedError, UnreachableError) as error:
                _LOG.warning("no rounds of %s: %s", other, error)
                continue
            await self._write("log", partial(self.log.append, missed, last_round))
            self.learn(self.log.records)
        if self.log.last_round < last_round:
            raise RejectedError(f"rounds {self.log.last_round + 1} to {last_round} are missing")

    async def _fetch_records(self, other: Identity) -> tuple[RoundRecord, ...]:
        """Fetches the rounds after its own last one from another edge server."""
        request, seconds = RecordsRequest(self.log.last_round), self.deployment.gossip_seconds
        return (await self._calls.call(other, request, seconds)).records

    async def find_records(self, caller: Identity, request: RecordsRequest) -> RecordsAnswer:
        """Returns the records of all rounds after one."""
        del caller
        return RecordsAnswer(tuple(each for each in self.log.records if each.round > request.after))

    async def stop(self, caller: Identity, command: StopCommand) -> Confirmation:
        """Lets the run end with an error: nobody can train any more."""
        await self._admit_command(caller, command)
        self.stopped.set()
        return Confirmation()

    async def release(self, caller: Identity, request: ReleaseRequest) -> Confirmation:
        """Lets this edge server stop: all others know that the experiment is over."""
        del caller
        # It may itself be listed, if it was missing and has just come back.
        self.awaited = tuple(i for i in request.missing if i != self.number)
        self.released.set()
        return Confirmation()

    async def adopt_end(self, number: int) -> None:
        """Takes over the end of the experiment from another edge server: its log and, if needed, its model.

        Raises:
            DeploymentError: the other one cannot be reached, or rejects.
        """
        missed = await self._fetch_records(Identity("edge", number))
        last_round = missed[-1].round if missed else self.log.last_round
        await self._catch_up((last_round, 0, 0), number)
        await self._write("log", partial(self.log.append, missed, last_round))
        self.released.set()
        self.finished.set()
        self.learn(self.log.records)
        _LOG.warning("the experiment ended with round %d while this edge server was missing", last_round)


def _ends(world: World, record: RoundRecord) -> bool:
    """Whether the experiment is over with this round."""
    setting = world.at(record.round).setting
    return is_over(setting.rounds, setting.budget, setting.metrics[0], record)


def _list_results(plan: RoundPlan, answers: DeviceAnswers[DeviceReport]) -> tuple[DeviceResult, ...]:
    return tuple(
        DeviceResult(
            device=n,
            rho=float(plan.rho[n]),
            theta=float(plan.theta[n]),
            speed=1.0 if plan.speed is None else float(plan.speed[n]),
            steps=report.steps,
            wire_bits=report.update.wire_bits,
            loss=report.loss,
            estimates=report.estimates,
            measured=answers.measured.get(n),
            seconds=answers.answer_seconds[n],
            unused=answers.unused.get(n, ()),
        )
        for n, report in answers.values.items()
    )


def _latest(one: Round | None, other: Round | None) -> Round | None:
    return max((each for each in (one, other) if each is not None), default=None)


def _after_edge_round(
    state: EdgeState,
    at: Position,
    coordinator_state: CoordinatorState,
    model: FlatModel,
    answer: PlanAnswer,
    used: Sequence[int],
) -> EdgeState:
    # A successor may ask again for any edge round since the last record.
    recent = {place: report for place, report in state.reports.items() if place[0] >= at[0] - 1}
    used_rounds = dict.fromkeys(used, at[:2])
    return replace(
        state,
        position=(at[0], at[1] + 1, 0),
        model=model,
        reports={**recent, at: answer},
        last_used_rounds={**state.last_used_rounds, **used_rounds},
        coordinator_state=coordinator_state,
    )


def describe_round(record: RoundRecord, metric: Metric) -> str:
    """A finished round in a line; costs are realised."""
    quality = "" if record.accuracy is None else f"{metric.name} {metric.format(record.accuracy)}, "
    spent = format_seconds(record.seconds_realised), format_joules(record.joules_realised)
    return (
        f"round {record.round}: {quality}{plural(record.devices_taking_part, 'device')}, "
        f"{spent[0]} and {spent[1]} so far"
    )
