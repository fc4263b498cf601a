"""The coordinator's part: a role that one edge server holds for a term, and that keeps nothing of its own.

It plans edge rounds, has the edge servers carry them out and gossip, and writes the record of each global
round. All it knows travels in every command (`control_state`): a successor asks the others for the newest
and goes on from there, repeating the last command; whoever has carried it out tells again what came of it.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from cfel.arrays import FloatArray
from cfel.cost import Ledger, after_exchange, after_global_round
from cfel.deployment.compute_thread import ComputeThread
from cfel.deployment.coordinator.control_state import Control, first_control, from_json, outcome, to_json
from cfel.deployment.coordinator.counting import counted, with_estimates
from cfel.deployment.coordinator.edge_calls import QUICK_SECONDS, TRY_AGAIN_SECONDS, TermCalls
from cfel.deployment.coordinator.partial_mixing import rows_for
from cfel.deployment.measurement.measured_rounds import apply_reports, reserve_overhead
from cfel.deployment.parameters import DeploymentParameters
from cfel.deployment.positions import ends_exchange, ends_global_round, gossip_is_next
from cfel.deployment.security.identity import Identity
from cfel.deployment.transport.grpc_transport import Calls, OnRefusal
from cfel.errors import UnreachableError
from cfel.rounds import (
    SimulationParameters,
    beyond_belief,
    is_evaluated,
    is_last,
    mean_metric,
    observed,
    plan_table,
    round_record,
    wants_estimates,
)
from cfel.runlog.plans import column_names
from cfel.world import World

_LOG = logging.getLogger(__name__)

Close = Callable[[Ledger, FloatArray], Ledger]


class Coordinator:
    """One term in office.

    Args:
        world: what is run.
        simulation: accounts, evaluation, when to stop.
        deployment: deadlines.
        term: of office.
        calls: how it reaches the edge servers, its own included.
        compute: where plans are made.
        still_leads: whether it still may act.
        number: the edge server that holds the office.
        on_refusal: told whose estimates are not believed.
    """

    def __init__(
        self,
        world: World,
        simulation: SimulationParameters,
        deployment: DeploymentParameters,
        term: int,
        calls: Calls,
        compute: ComputeThread,
        still_leads: Callable[[], bool],
        number: int,
        on_refusal: OnRefusal,
    ) -> None:
        self._on_refusal = on_refusal
        self._world, self._simulation, self._deployment = world, simulation, deployment
        self._compute, self._number = compute, number
        self._edges = TermCalls(term, world.fleet.clusters, calls, still_leads, deployment.gossip_seconds)
        self._counted_at = time.monotonic()

    async def lead(self) -> None:
        """Leads the experiment to its end.

        Raises:
            DeposedError: somebody else does from now on.
        """
        control, last = await self._take_over(), False
        self._counted_at = time.monotonic()
        while not last:
            if not gossip_is_next(self._world, control.at):
                control = await self._edge_round(control)
            elif not ends_global_round(self._world, control.at):
                control = await self._gossip_within(control)
            else:
                control, last = await self._global_round(control)
        await self._edges.ask_once("farewell", {"missing": sorted(self._edges.missing)}, QUICK_SECONDS)

    async def _take_over(self) -> Control:
        """The newest control that anybody knows; before the first round, waits for everybody to be there."""
        deadline = time.monotonic() + self._deployment.join_seconds
        clusters = self._world.fleet.clusters
        while True:
            answers = await self._edges.ask_once("newest", {}, QUICK_SECONDS)
            known = [from_json(each["control"]) for each in answers.values() if each["control"]]
            if known and 2 * len(answers) > clusters:
                return max(known, key=lambda control: control.newness)
            there = sum(len(each["connected"]) for each in answers.values())
            complete = len(answers) == clusters and there == self._world.fleet.devices
            overdue = time.monotonic() > deadline and 2 * len(answers) > clusters and there > 0
            if not known and (complete or overdue):
                return first_control(self._world, measures=self._deployment.measures)
            await asyncio.sleep(TRY_AGAIN_SECONDS)

    async def _edge_round(self, control: Control) -> Control:
        if control.plan is None:
            control = await self._planned(control)
        answers = await self._edges.ask_all(
            "plan", control.at, self._deployment.round_seconds, {"control": to_json(control)}
        )
        return counted(self._world, self._simulation, control, answers, self._since_last_count())

    async def _planned(self, control: Control) -> Control:
        world, at = self._world, (control.rounds_done, control.edge_round)
        conditions = world.fleet.conditions(world.seed, *at, world.model_bits, control.spent_joules)
        control = await self._with_somebody(control, set(np.flatnonzero(conditions.available).tolist()))
        away = np.zeros(world.fleet.devices, dtype=bool)
        away[list(control.absent)] = True
        conditions = conditions.without(away)
        available = tuple(conditions.available.tolist())
        if wants_estimates(world, control.estimates):
            asked = {"available": available}
            answers = await self._edges.ask_all("estimate", control.at, self._deployment.round_seconds, asked)
            control = with_estimates(control, answers)
        if control.measured is not None:
            conditions = apply_reports(control.measured.devices, conditions)
        for device in beyond_belief(control.estimates):
            self._on_refusal(Identity("device", device), "plan", "its σ² and G² are beyond belief")
        seen = observed(world, self._simulation, control, at[1], conditions, control.estimates)
        if control.measured is not None:
            seen = reserve_overhead(world, control.measured, seen)
        plan, scheme = await self._compute.run(lambda: world.scheme.plan(control.scheme, seen))
        return replace(control, plan=plan, scheme=scheme, available=available)

    async def _with_somebody(self, control: Control, wanted: set[int]) -> Control:
        """Waits while all who could take part are away and nobody else is there: such rounds are for nothing.

        With others there the round passes without anybody, as in the simulator where none is available.
        """
        if not wanted or not wanted <= set(control.absent):
            return control
        there: set[int] = set()
        while not there:
            answers = await self._edges.ask_once("newest", {}, QUICK_SECONDS)
            there = {n for each in answers.values() for n in each["connected"]}
            await asyncio.sleep(0 if there else TRY_AGAIN_SECONDS)
        return replace(control, absent=tuple(n for n in control.absent if n not in there))

    def _since_last_count(self) -> float:
        """Seconds since this was called before: in the sum, none is left out."""
        now = time.monotonic()
        passed, self._counted_at = now - self._counted_at, now
        return passed

    def _exchanged(self, control: Control, after: Control, close: Close) -> Control:
        """With what an exchange of models took by the clock, where that counts."""
        if control.measured is None:
            return after
        seconds = self._since_last_count()
        told = replace(control.measured, exchange=control.measured.exchange.add(seconds, 1))
        spent = close(control.realised, np.full(self._world.fleet.clusters, seconds))
        return replace(after, realised=spent, measured=told)

    async def _gossip_within(self, control: Control) -> Control:
        """A gossip step that does not end the global round."""
        after = replace(control, step=control.step + 1)
        if ends_exchange(self._world, control.at):
            seconds = self._world.exchange_seconds
            after = replace(
                after,
                expected=after_exchange(control.expected, seconds),
                realised=after_exchange(control.realised, seconds),
            )
        after = await self._gossiped(control, after, looks=False)
        ends = ends_exchange(self._world, control.at)
        return self._exchanged(control, after, after_exchange) if ends else after

    async def _global_round(self, control: Control) -> tuple[Control, bool]:
        """The gossip step that ends a global round, and its record.

        Returns:
            The control to go on from, and whether that was the last round.
        """
        world, simulation = self._world, self._simulation
        after = replace(
            control,
            rounds_done=control.rounds_done + 1,
            edge_round=0,
            step=0,
            expected=after_global_round(control.expected, world.exchange_seconds),
            realised=after_global_round(control.realised, world.exchange_seconds),
            done=(),
        )
        # By the clock it is not known before the exchange whether it uses the budget up.
        looks = is_evaluated(world, simulation, after) or (
            control.measured is not None and simulation.stop == "budget"
        )
        after = await self._gossiped(control, after, looks and simulation.evaluate_on == "edge")
        after = self._exchanged(control, after, after_global_round)
        edge_rounds = [outcome(world, simulation, control.rounds_done, done) for done in control.done]
        record = round_record(
            world,
            simulation,
            after,
            edge_rounds,
            accuracy=await self._accuracy(after) if looks else None,
            model_sha256=hashlib.sha256(b"".join(map(bytes.fromhex, after.digests))).hexdigest(),
            wall_seconds=time.time() - control.began,
        )
        table = plan_table(world, edge_rounds, after.rounds_done)
        last = is_last(world, simulation, record)
        written = {
            "record": record.to_json_line(),
            "plans": {name: getattr(table, name).tolist() for name in column_names()},
            "last": last,
        }
        await self._edges.ask_all("close", control.at, self._deployment.gossip_seconds, written)
        return replace(after, began=time.time()), last

    async def _gossiped(self, control: Control, after: Control, looks: bool) -> Control:
        """Has everybody do a gossip step: first all fetch, then all mix with the weights of who is there."""
        seconds = self._deployment.gossip_seconds
        fetched = await self._edges.ask_all("fetch", control.at, seconds, {"live": self._edges.present()})
        there = {i: each for i, each in fetched.items() if tuple(each["position"]) >= control.at}
        # Whoever has mixed already did so with weights that the others have to use as well.
        settled = [each["rows"] for each in there.values() if each["rows"] is not None]
        at_once = self._world.scheme.gossip.reach == "everybody"
        got = {i: each["got"] for i, each in there.items()}
        rows = settled[0] if settled else rows_for(self._world.backhaul, got, at_once=at_once)
        order = {"rows": rows, "evaluate": looks, "control": to_json(control)}
        told = await self._edges.ask_all("mix", control.at, seconds, order, only=there)
        digests, metrics = list(after.digests), list(after.metrics)
        for i, each in told.items():
            digests[i] = each["digest"]
            if each["metric"] is not None:
                metrics[i] = each["metric"]
        return replace(after, digests=tuple(digests), metrics=tuple(metrics))

    async def _accuracy(self, control: Control) -> float:
        if self._simulation.evaluate_on == "edge":
            return mean_metric(self._world, control.metrics)
        seconds, own = self._deployment.gossip_seconds, self._number
        told = await self._edges.ask_once("mean_metric", {}, seconds, only=[own])
        if not told:
            raise UnreachableError("the mean model could not be evaluated")
        return float(told[own]["metric"])
