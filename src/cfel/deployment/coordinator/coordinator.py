"""The coordinator: a role that one edge server holds for a term, without any state on a disk.

It plans edge rounds, has the edge servers carry them out and gossip, and makes the record of each global
round. All it knows travels in every command (`state`). A successor asks the others for the newest state and
repeats the last command; an edge server that has carried it out already repeats its answer.

`CoordinatorRole` starts a `Coordinator` when its edge server is elected and ends it with the term. After a
failure it resigns for a while, so that another edge server takes over.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from cfel.arrays import BoolArray
from cfel.control.scheme import Observation
from cfel.control.setting import Setting
from cfel.deployment.coordinator.asking import AskedClusters
from cfel.deployment.coordinator.calls import (
    QUICK_SECONDS,
    TRY_AGAIN_SECONDS,
    DeposedError,
    Handover,
    TermCalls,
    take_over,
)
from cfel.deployment.coordinator.changes import PendingChanges, adopt_records
from cfel.deployment.coordinator.counting import (
    Answer,
    add_edge_round,
    add_estimates,
    add_sums,
    bound_answers,
    combine_scores,
    count_edge_round,
    mixing_rows,
    note_used,
    read_scores,
)
from cfel.deployment.coordinator.state import (
    CoordinatorState,
    Position,
    ends_exchange,
    ends_global_round,
    enter_round,
    gossip_is_next,
)
from cfel.deployment.edge.server import EdgeServer
from cfel.deployment.election.member import Member
from cfel.deployment.host import DiskHealth, Host
from cfel.deployment.measurement.measured_rounds import apply_reports, reserve_overhead
from cfel.deployment.measurement.plausibility import Doubts, usual_conditions
from cfel.deployment.parameters import DeploymentParameters
from cfel.deployment.protocol.calls import Calls, OnRejection
from cfel.deployment.protocol.edge_requests import (
    CloseCommand,
    EstimateAnswer,
    EstimateCommand,
    FetchCommand,
    JoinCommand,
    MeanMetricRequest,
    MixAnswer,
    MixCommand,
    NewestRequest,
    OrderCounts,
    PlanAnswer,
    PlanCommand,
    ReleaseRequest,
    StopCommand,
)
from cfel.deployment.security.identity import Identity
from cfel.errors import AllDivergedError, DeploymentError, RejectedError, UnreachableError
from cfel.membership import FleetChange, RoundLoss
from cfel.rounds.estimates import (
    find_impossible,
    needs_estimates,
    note_influence,
    view_estimates,
)
from cfel.rounds.kernel import (
    charge_gossip,
    close_global_round,
    ends_at_budget,
    exceeds_budget,
    find_used,
    is_evaluated,
    is_over,
    may_end_at_budget,
    observe,
    plan_edge_round,
)
from cfel.rounds.records import RoundScores, add_up, add_up_clusters, make_plan_table, make_record
from cfel.runlog import RoundRecord
from cfel.system.conditions import Conditions
from cfel.system.fleet import Fleet
from cfel.world import World

_LOG = logging.getLogger(__name__)
_LOOK_SECONDS = 0.01
_DISK_LOOK_SECONDS = 0.5
# In election timeouts: how long it asks for no votes without a disk, and at most after failures.
_RESTS_WITHOUT_DISK = 8.0
_MOST_RESTS = 64.0


class Coordinator:
    """The coordinator of one term.

    Args:
        edges: how it calls the edge servers, its own included.
        host: the machine it runs on, where plans are made.
        on_rejection: called for devices with implausible estimates or measurements.
        pending: changes of the fleet that were asked for.
    """

    def __init__(
        self,
        world: World,
        deployment: DeploymentParameters,
        edges: TermCalls,
        host: Host,
        number: int,
        on_rejection: OnRejection,
        pending: PendingChanges,
    ) -> None:
        self._pending, self._elected_by = pending, edges.members
        self._world, self._deployment, self._edges, self._host = world, deployment, edges, host
        self._number, self._on_rejection = number, on_rejection
        self._usual = usual_conditions(world.setting)
        # Answers of the clusters whose models were evaluated after the last gossip step.
        self._evaluated: dict[int, MixAnswer] = {}
        # Devices that have diverged since a device last answered an order.
        self._diverged: set[int] = set()
        self._counted_at = 0.0
        self._doubts = Doubts(deployment.quarantine_after, self._on_quarantine)

    async def lead(self) -> None:
        """Leads the experiment to its end.

        Raises:
            DeposedError: another coordinator has taken over.
            AllDivergedError: no device can train any more.
        """
        # No state of its own: whatever the last coordinator did is known to the edge servers.
        found = await take_over(self._edges, self._world, self._deployment, self._host.time_of_day())
        state, over = self._enter(found.state), False
        self._edges.leaving = found.find_leaving()
        self._since_last_count()
        while not over:
            if state.position[1:] == (0, 0) and not state.is_planned:
                await self._begin_round(state)
            if not gossip_is_next(self._world, state.position):
                state = await self._run_edge_round(state)
            elif not ends_global_round(self._world, state.position):
                state = await self._gossip_within_round(state)
            else:
                state, over = await self._end_global_round(state, found)

    def _enter(self, state: CoordinatorState) -> CoordinatorState:
        """Takes over the members of a state's round: its own edge server may have missed changes.

        Raises:
            DeposedError: edge servers have joined or left meanwhile, so others may have elected it.
        """
        if self._by_clusters and state.estimates:
            raise DeploymentError(
                "the run was begun by an older version, whose coordinator had the numbers of all devices: "
                "end it with that version, or delete the edge servers' directories to begin anew"
            )
        if len(state.changes) > len(self._world.changes):
            self._world = self._world.with_changes(state.changes)
        number = state.control.rounds_done
        self._world = self._world.at(number)
        self._usual = usual_conditions(self._world.setting)
        members = self._world.membership_at(number).edges
        if self._number not in members:
            raise DeposedError(f"edge-{self._number} has left the fleet")
        self._edges.members, self._edges.leaving = members, frozenset()
        return state

    async def _begin_round(self, state: CoordinatorState) -> None:
        """Waits for the end of a pause; has edge servers that join fetch the model they begin with."""
        number = state.control.rounds_done
        if self._world.membership_at(number).is_paused:
            _LOG.warning("paused before round %d", number + 1)
            while not self._pending.is_resumed():
                self._edges.check_term()
                await asyncio.sleep(TRY_AGAIN_SECONDS)
        before, now = (self._world.membership_at(each).edges for each in (max(number - 1, 0), number))
        if new := set(now) - set(before):
            command = JoinCommand(self._edges.term, state.position, before[0])
            await self._edges.command(command, self._deployment.gossip_seconds, only=sorted(new))

    async def _run_edge_round(self, state: CoordinatorState) -> CoordinatorState:
        if not state.is_planned:
            state = await (self._ask_and_plan(state) if self._by_clusters else self._plan(state))
        command = PlanCommand(self._edges.term, state.position, state)
        found = await self._edges.command(command, self._deployment.round_seconds)
        if self._by_clusters:
            after = add_sums(self._world, state, found, self._since_last_count())
            await self._stop_if_counts_say_so(
                [each.sums.counts for each in found.values() if each.sums], state
            )
            return after
        state, answers, implausible = self._bound(state, found)
        after = add_edge_round(self._world, state, answers, self._since_last_count())
        arrived = {each.device for answer in answers.values() for each in answer.devices}
        self._doubts.add(arrived, implausible | self._judge_estimates(after, arrived))
        await self._stop_if_diverged(state.available, answers.values(), after)
        return after

    async def _stop_if_diverged(
        self,
        asked: Sequence[bool],
        answers: Iterable[EstimateAnswer | PlanAnswer],
        state: CoordinatorState,
    ) -> None:
        """Ends the run if nobody can train any more: rounds without any device would use it up.

        Raises:
            AllDivergedError: nobody can; all edge servers that are there know it.
        """
        absent = {*state.absent_devices, *np.flatnonzero(self._without_edge_server()).tolist()}
        there = set(self._world.setting.fleet.list_members()) - absent
        if self._is_total(set(np.flatnonzero(asked).tolist()), list(answers), there):
            await self._edges.command(
                StopCommand(self._edges.term, state.position), self._deployment.gossip_seconds
            )
            raise describe_all_diverged(self._world, state.position)

    def _is_total(
        self, asked: set[int], answers: Sequence[EstimateAnswer | PlanAnswer], there: set[int]
    ) -> bool:
        """Whether no device can train: all that were asked diverged, and they are a majority.

        One device that diverges does not end the run of all: its data or its machine may be the cause, and
        nothing it says about itself is proven.
        """
        if any(answer.devices for answer in answers):
            self._diverged = set()
            return False
        diverged = {device for answer in answers for device in answer.diverged}
        self._diverged |= diverged
        # With sampled devices it may take a few rounds; one that is merely late may answer in the next.
        is_majority = 2 * len(self._diverged & there) > len(there)
        return bool(diverged) and asked & there <= diverged and is_majority

    @property
    def _by_clusters(self) -> bool:
        return self._world.setting.by_clusters

    async def _ask_and_plan(self, state: CoordinatorState) -> CoordinatorState:
        """The state with a decision, made by asking edge servers about their devices."""
        setting, seconds = self._world.setting, self._deployment.gossip_seconds
        asked = AskedClusters(self._world, self._edges, state.position, seconds)
        await asked.meet()
        if self._world.training.local.estimator == "fresh" or asked.lacks_estimates(state.position):
            command = EstimateCommand(self._edges.term, state.position, (), self._world.changes)
            answers = await self._edges.command(command, self._deployment.round_seconds)
            await self._stop_if_counts_say_so(
                [each.counts for each in answers.values() if each.counts], state
            )
            await asked.meet()
        found = await asked.plan(state)
        while found.decision.terms is None and not await self._is_anybody_connected():
            # Rounds without any device would use the run up.
            await asyncio.sleep(TRY_AGAIN_SECONDS)
            await asked.meet()
            found = await asked.plan(state)
        used = find_used(setting.schedule_by, found.observation)
        control = replace(state.control, scheme=found.state)
        asked_edges = tuple(sorted(asked.present))
        return replace(state, decision=found.decision, asked=asked_edges, control=control, used=used)

    async def _is_anybody_connected(self) -> bool:
        answers = await self._edges.ask_once(NewestRequest(self._edges.term), QUICK_SECONDS)
        return any(each.joined for each in answers.values())

    async def _stop_if_counts_say_so(self, counts: Sequence[OrderCounts], state: CoordinatorState) -> None:
        """The same as `_stop_if_diverged`, by numbers of devices.

        Raises:
            AllDivergedError: nobody can train any more; all edge servers that are there have been told.
        """
        asked, diverged = sum(each.asked for each in counts), sum(each.diverged for each in counts)
        there = len(self._world.setting.fleet.list_members())
        if any(each.answered for each in counts) or not asked or diverged < asked or 2 * diverged <= there:
            return
        await self._edges.command(
            StopCommand(self._edges.term, state.position), self._deployment.gossip_seconds
        )
        raise describe_all_diverged(self._world, state.position)

    async def _plan(self, state: CoordinatorState) -> CoordinatorState:
        setting, control = self._world.setting, state.control
        conditions = setting.conditions(control.rounds_done, state.edge_round, control.spent_joules)
        state = await self._wait_for_devices(state, set(np.flatnonzero(conditions.available).tolist()))
        absent = self._list_absent(setting.fleet, state)
        missing = np.flatnonzero(conditions.available & absent).tolist()
        conditions = conditions.without(absent)
        available = tuple(conditions.available.tolist())
        if needs_estimates(self._world.training.local.estimator, state.estimates):
            command = EstimateCommand(self._edges.term, state.position, available, self._world.changes)
            answers = await self._edges.command(command, self._deployment.round_seconds)
            state = add_estimates(state, self._bound(state, answers)[1].values())
            await self._stop_if_diverged(available, answers.values(), state)
        observation = self._observe(setting, state, conditions)
        control = note_influence(setting, control, state.estimates, conditions.available)
        # A plan for a million devices takes seconds; heartbeats must go out meanwhile.
        plan, control = await self._host.compute.run(lambda: plan_edge_round(setting, control, observation))
        plan = replace(plan, speed=None) if observation.full_clocks else plan
        used = find_used(setting.schedule_by, observation)
        asked = tuple(plan.leave_out(conditions).available.tolist())
        return replace(
            state, plan=plan, control=control, available=asked, used=used, absent_now=tuple(missing)
        )

    def _list_absent(self, fleet: Fleet, state: CoordinatorState) -> BoolArray:
        """Per device, whether it or its edge server is not there, or is left out."""
        absent = np.isin(fleet.cluster, self._edges.find_gone())
        absent[[*state.absent_devices, *self._doubts.find_quarantined()]] = True
        return absent

    def _observe(self, setting: Setting, state: CoordinatorState, conditions: Conditions) -> Observation:
        """What the scheme sees of these conditions, as measured where devices measure."""
        if state.measured is not None:
            conditions = apply_reports(state.measured.devices, conditions)
        estimates = view_estimates(setting, state.control, state.estimates, conditions.available)
        observation = observe(setting, state.control, state.edge_round, conditions, estimates)
        if state.measured is None:
            return observation
        # Nothing sets clocks on devices yet, so slower ones must be neither planned nor charged.
        return replace(reserve_overhead(self._world, state.measured, observation), full_clocks=True)

    async def _ends_at_budget(self, world: World, closed: CoordinatorState) -> bool:
        """Whether the budgets do not cover another round; `closed` is after the one that has ended."""
        state = replace(enter_round(world, closed), edge_round=0)
        setting, control = world.at(state.control.rounds_done).setting, state.control
        if self._by_clusters:
            return may_end_at_budget(setting, control) and await self._exceeds_budget(world, state)

        def look_ahead() -> Observation:
            conditions = setting.conditions(control.rounds_done, 0, control.spent_joules)
            absent = self._list_absent(setting.fleet, state)
            return self._observe(setting, state, conditions.without(absent))

        return await self._host.compute.run(lambda: ends_at_budget(setting, control, look_ahead))

    async def _exceeds_budget(self, world: World, state: CoordinatorState) -> bool:
        """Whether the next round would exceed a budget, by what edge servers say about their devices."""
        at, seconds = state.position, self._deployment.gossip_seconds
        ahead = world.at(at[0])
        asked = AskedClusters(ahead, self._edges, at, seconds, is_ahead=True)
        await asked.meet()
        found = await asked.plan(state)
        return exceeds_budget(ahead.setting, state.control, found.observation, await asked.count(found))

    def _bound(
        self, state: CoordinatorState, answers: Mapping[int, Answer]
    ) -> tuple[CoordinatorState, dict[int, Answer], set[int]]:
        """Bounds what devices measured and charges their accounts; also who reported implausible figures."""
        answers, bounded = bound_answers(
            self._world, self._usual, state, answers, self._deployment.report_spread
        )
        for device, reason in bounded.reasons:
            self._on_rejection(Identity("device", device), "measurements", reason)
        if state.measured is not None:
            state = replace(state, measured=replace(state.measured, accounts=bounded.accounts))
        return state, answers, {device for device, _ in bounded.reasons}

    def _judge_estimates(self, state: CoordinatorState, arrived: set[int]) -> set[int]:
        """Reports whose σ² and G², among those that have just arrived, no honest device has."""
        small = self._world.setting.small_batches is not None
        found = arrived.intersection(find_impossible(state.estimates, small_batches=small))
        for device in sorted(found):
            self._on_rejection(Identity("device", device), "estimates", "its σ² and G² are not plausible")
        return found

    async def _wait_for_devices(self, state: CoordinatorState, available: set[int]) -> CoordinatorState:
        """Waits while every available device is absent and no other is connected: such rounds do nothing.

        If other devices are connected, the round passes without any device, as in the simulator.
        """
        absent = {*state.absent_devices, *np.flatnonzero(self._without_edge_server()).tolist()}
        if not available or not available <= absent:
            return state
        connected: set[int] = set()
        while not connected:
            answers = await self._edges.ask_once(NewestRequest(self._edges.term), QUICK_SECONDS)
            connected = {n for each in answers.values() for n in each.connected}
            await asyncio.sleep(0 if connected else TRY_AGAIN_SECONDS)
        return replace(state, absent_devices=tuple(n for n in state.absent_devices if n not in connected))

    def _on_quarantine(self, device: int) -> None:
        self._on_rejection(
            Identity("device", device), "reports", "left out after repeated implausible reports"
        )

    def _without_edge_server(self) -> BoolArray:
        """Per device, whether its edge server is gone."""
        return np.isin(self._world.setting.fleet.cluster, self._edges.find_gone())

    def _since_last_count(self) -> float:
        """Seconds since the previous call; their sum leaves no time out."""
        now = asyncio.get_running_loop().time()
        passed, self._counted_at = now - self._counted_at, now
        return passed

    def _measure_exchange(self, state: CoordinatorState) -> tuple[CoordinatorState, float | None]:
        """Adds the seconds of the exchange just finished, and returns them; None where the model counts."""
        if state.measured is None:
            return state, None
        seconds = self._since_last_count()
        measured = replace(state.measured, exchange=state.measured.exchange.add(seconds, 1))
        return replace(state, measured=measured), seconds

    async def _gossip_within_round(self, state: CoordinatorState) -> CoordinatorState:
        """A gossip step that does not end the global round."""
        after = replace(await self._gossip(state, evaluates=False), step=state.step + 1)
        if not ends_exchange(self._world, state.position):
            return after
        after, seconds = self._measure_exchange(after)
        return replace(after, control=charge_gossip(self._world.setting, after.control, seconds))

    async def _end_global_round(
        self, state: CoordinatorState, found: Handover
    ) -> tuple[CoordinatorState, bool]:
        """The gossip step that ends a global round, and its record; returns also whether the run is over."""
        setting, evaluation = self._world.setting, self._world.evaluation
        # What is asked for now holds from the next round on, and counts in whether there is one.
        world = self._take_changes(state)
        closed = replace(state, control=close_global_round(setting, state.control))
        ahead = world.at(closed.control.rounds_done).setting
        last = await self._ends_at_budget(world, closed)
        evaluates = is_evaluated(ahead, evaluation.every, closed.control, ends_at_budget=last)
        # Measured, it is not known before the exchange whether it uses the budget up.
        evaluates |= state.measured is not None and setting.rounds.stop == "budget"
        # A part of the model is on devices only, so edge servers have nothing to evaluate.
        evaluates = evaluates and not world.new_device.memory
        after = await self._gossip(state, evaluates and evaluation.on == "edge")
        after, seconds = self._measure_exchange(after)
        control = close_global_round(setting, state.control, seconds)
        if seconds is not None:
            last = await self._ends_at_budget(world, replace(after, control=control))
        edge_rounds = [
            count_edge_round(self._world, state.control.rounds_done, finished) for finished in state.finished
        ]
        totals = (
            add_up_clusters(setting, state.totals, state.decided)
            if self._by_clusters
            else add_up(setting, edge_rounds)
        )
        scores = await self._find_scores(after) if evaluates else RoundScores()
        digests = [after.digests[i] for i in setting.fleet.list_edges()]
        record = make_record(
            world,
            control,
            totals,
            scores,
            model_sha256=hashlib.sha256(b"".join(map(bytes.fromhex, digests))).hexdigest(),
            wall_seconds=self._host.time_of_day() - state.started_at,
            ends_at_budget=last,
            losses=[*(each for finished in state.finished for each in finished.losses), *after.gossip_losses],
        )
        record = found.choose_record(record)
        world = adopt_records(self._world, [record])
        if not self._is_agreed(record, found, world):
            await self._edges.propose(state.position, record, self._deployment.gossip_seconds)
        ahead = world.at(record.round).setting
        over = is_over(ahead.rounds, ahead.budget, ahead.metrics[0], record)
        table = None if self._by_clusters else make_plan_table(setting, edge_rounds, control.rounds_done)
        counted = tuple(tuple(np.flatnonzero(each.devices).tolist()) for each in state.totals)
        command = CloseCommand(self._edges.term, state.position, record, table, over, counted)
        logged = await self._close(command, world)
        if over:
            missing = tuple(i for i in self._edges.members if i not in logged)
            await self._edges.ask_once(ReleaseRequest(missing), QUICK_SECONDS)
        self._world = world
        after = replace(
            after, control=control, edge_round=0, step=0, finished=(), decided=(), totals=(), gossip_losses=()
        )
        after = replace(enter_round(world, after), started_at=self._host.time_of_day())
        return (after if over else self._enter(after)), over

    def _is_agreed(self, record: RoundRecord, found: Handover, world: World) -> bool:
        """Whether those who vote after a round have elected this coordinator, so that its record is logged.

        It need not be proposed then, and cannot: of those who voted before, no majority may be left.
        """
        after = world.membership_at(record.round).edges
        is_found = found.find_record(record.round) is not None
        return is_found and self._elected_by == after != self._edges.members

    def _take_changes(self, state: CoordinatorState) -> World:
        """The world with the changes that were asked for, from the next round on."""
        gone = self._edges.find_gone()
        self._pending.drop_moves(gone)
        if self._deployment.fail_over == "return":
            members = self._world.membership_at(state.control.rounds_done)
            for device, home in members.guests:
                if home in members.edges and home not in gone and home not in self._edges.missing:
                    ticket = f"device-{device} returns after round {state.position[0] + 1}"
                    back = FleetChange(1, "move device", (device,), home, ticket=ticket)
                    try:
                        self._pending.submit(self._world, back, state.position[0])
                    except RejectedError as error:
                        _LOG.info("stays where it is: %s", error)  # an operator has asked for something else
        return self._pending.take(self._world, state.control.rounds_done + 2)

    async def _close(self, command: CloseCommand, world: World) -> set[int]:
        """Has the record logged by all, those that leave or join with it included; returns who has done so.

        Edge servers come and go one at a time: before the next, a majority of the new members must know of
        this one. If its own edge server leaves, it does so last: its term ends with that.
        """
        old, seconds = self._edges.members, self._deployment.gossip_seconds
        new = old if command.last else world.membership_at(command.record.round).edges
        leaves = {self._number}.difference(new)
        everybody = sorted({*old, *new} - leaves)
        confirmed = set(await self._edges.command(command, seconds, only=everybody))
        self._pending.forget(world.changes)
        while old != new and 2 * len(confirmed.intersection(new)) <= len(new):
            await asyncio.sleep(TRY_AGAIN_SECONDS)
            confirmed |= set(await self._edges.command(command, seconds, only=everybody))
        return confirmed | set(await self._edges.command(command, seconds, only=leaves))

    async def _gossip(self, state: CoordinatorState, evaluates: bool) -> CoordinatorState:
        """One gossip step: all fetch models, then all mix with the weights of those that are there."""
        seconds, term = self._deployment.gossip_seconds, self._edges.term
        fetched = await self._edges.command(
            FetchCommand(term, state.position, self._edges.list_present()), seconds
        )
        # An edge server that is behind has no model for this step.
        present = {i: each for i, each in fetched.items() if each.position >= state.position}
        setting = self._world.setting
        received = {i: each.received_from for i, each in present.items()}
        state = note_used(state, present.values())
        at_once = setting.scheme.gossip.reach == "everybody"
        backhaul = setting.backhaul_at(*state.position)
        # Those that have mixed under an earlier coordinator used weights that the others must use, too.
        mixed = (each.rows for each in present.values() if each.rows is not None)
        rows = next(mixed, None) or mixing_rows(backhaul, received, at_once=at_once)
        command = MixCommand(term, state.position, rows, evaluates, state)
        answers = await self._edges.command(command, seconds, only=present)
        self._evaluated = {i: each for i, each in answers.items() if each.metric is not None}
        digests, metrics = list(state.digests), list(state.metrics)
        for i, each in answers.items():
            digests[i] = each.digest
            if each.metric is not None:
                metrics[i] = each.metric
        losses = state.gossip_losses
        # One that mixed alone, before it was cut off, has its own weights.
        rows = tuple(answers[i].rows[i] if i in answers else row for i, row in enumerate(rows))
        complete = tuple(tuple(row.tolist()) for row in backhaul.weights)
        if rows != complete or set(answers) != set(setting.fleet.list_edges()):
            loss = RoundLoss(
                state.position[0] + 1, *state.position[1:2], step=state.step, rows=rows, mixed=tuple(answers)
            )
            losses = (*losses, loss)
        return replace(state, digests=tuple(digests), metrics=tuple(metrics), gossip_losses=losses)

    async def _find_scores(self, state: CoordinatorState) -> RoundScores:
        if self._world.evaluation.on == "edge":
            return combine_scores(self._world, state.metrics, self._evaluated)
        seconds, own = self._deployment.gossip_seconds, self._number
        answers = await self._edges.ask_once(MeanMetricRequest(), seconds, only=[own])
        if not answers:
            raise UnreachableError("the mean model could not be evaluated")
        return read_scores(answers[own])


def describe_all_diverged(world: World, at: Position) -> AllDivergedError:
    """The error that ends a run at a position."""
    return AllDivergedError(
        f"global round {at[0] + 1}: training diverged at all devices that were asked, so nothing is left to "
        f"learn from; most likely local.learning_rate = {world.training.local.learning_rate:g} is too large"
    )


class CoordinatorRole:
    """Runs a coordinator while its edge server is the leader.

    Args:
        server: its edge server, whose world, deadlines and machine it uses.
        calls: how to reach all edge servers, its own included.
        health: whether its edge server can write.
        on_rejection: called for devices with implausible estimates or measurements.
        is_gone: whether an edge server has been silent for too long to wait for it.

    Attributes:
        pending: changes of the fleet that it was asked for while it leads.
    """

    def __init__(
        self,
        server: EdgeServer,
        calls: Calls,
        health: DiskHealth,
        on_rejection: OnRejection,
        is_gone: Callable[[int], bool],
    ) -> None:
        self.pending = PendingChanges()
        self._server, self._calls, self._health = server, calls, health
        self._on_rejection, self._is_gone = on_rejection, is_gone
        self._task: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._failures = 0
        self._failure, self._failed_at = "", server.state.position

    def change(self, term: int, leader: int | None, member: Member) -> None:
        """Starts a coordinator if its edge server leads from now on; ends the one of an earlier term."""
        # A term has one coordinator, and the old one may still be waiting for answers.
        self.leave()
        self.pending = PendingChanges()
        if leader == self._server.number:
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._lead(term, member))
            self._watch = loop.create_task(self._watch_disk(term, member))

    @property
    def problem(self) -> str:
        """Why its last term failed, until the run makes progress again; else empty."""
        return self._failure if self._server.state.position == self._failed_at else ""

    async def wait_for_end(self) -> None:
        """Returns when the coordinator, if it runs here, has released all edge servers."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def leave(self) -> None:
        """Ends the coordinator at once."""
        for task in (self._task, self._watch):
            if task is not None and not task.done():
                task.cancel()

    async def _watch_disk(self, term: int, member: Member) -> None:
        """Leaves the role to another edge server if this one cannot write: its own rounds would stop all."""
        while not self._health.is_stuck:
            await asyncio.sleep(_DISK_LOOK_SECONDS)
        _LOG.warning("leaves the coordinator's role to another edge server: the disk here takes no writes")
        member.resign(term, _RESTS_WITHOUT_DISK * self._server.deployment.election_seconds)

    async def _lead(self, term: int, member: Member) -> None:
        def is_leading() -> bool:
            return member.state.term == term and member.is_leading()

        server, deployment = self._server, self._server.deployment
        members, grace_seconds = member.state.electorate.members, deployment.gossip_seconds
        edges = TermCalls(term, members, self._calls, is_leading, grace_seconds, self._is_gone)
        coordinator = Coordinator(
            server.whole, deployment, edges, server.host, server.number, self._on_rejection, self.pending
        )
        while not is_leading():
            # Elected, but not yet answered by a majority.
            await asyncio.sleep(_LOOK_SECONDS)
        try:
            await coordinator.lead()
        except (DeposedError, AllDivergedError) as error:
            _LOG.log(logging.WARNING if isinstance(error, DeposedError) else logging.ERROR, "%s", error)
            # Its lease may have been renewed meanwhile: a leader must not stay without a coordinator.
            member.resign(term, deployment.election_seconds)
        except Exception as error:  # noqa: BLE001 — logged with its trace; another edge server must take over
            self._give_up(term, member, error)
        else:
            self._failures = 0

    def _give_up(self, term: int, member: Member, error: Exception) -> None:
        """Leaves the role to another edge server; should that fail too, each waits longer."""
        self._failures += 1
        # Doubled each time, so that a failure that all edge servers share does not turn into an endless
        # election.
        rests = min(4.0 * 2**self._failures, _MOST_RESTS)
        rest_seconds = rests * self._server.deployment.election_seconds
        self._failure = f"coordinator of term {term} failed: {error!r}"
        self._failed_at = self._server.state.position
        _LOG.error("%s; asks for no votes for %.1f s", self._failure, rest_seconds, exc_info=error)
        member.resign(term, rest_seconds)
