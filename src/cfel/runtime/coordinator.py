"""The coordinator's part: a role that one edge server holds for a term, and that keeps nothing of its own.

It plans edge rounds, has the edge servers carry them out and gossip, and writes the record of each global
round. All it knows travels in every command (`control_state`): a successor asks the others for the newest
and goes on from there, repeating the last command; whoever has carried it out tells again what came of it.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from cfel.control.problem import FloatArray
from cfel.cost import Ledger, after_edge_round, after_exchange, after_global_round
from cfel.errors import DeploymentError, RefusedError, UnreachableError
from cfel.learning.estimates import Estimates, estimates_from
from cfel.rounds import (
    SimulationParameters,
    Work,
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
from cfel.runtime.control_state import Control, Done, first_control, from_json, outcome, to_json
from cfel.runtime.identity import Identity
from cfel.runtime.measured import (
    Measured,
    after_clocked,
    as_asked,
    beside,
    clocked,
    conditions_by,
    foreseen,
    rows_in,
)
from cfel.runtime.messages import Message
from cfel.runtime.mixing_live import rows_for
from cfel.runtime.parameters import DeploymentParameters
from cfel.runtime.stages import ends_exchange, ends_global_round, gossip_is_next
from cfel.runtime.transport import Calls, OnRefusal
from cfel.runtime.workroom import Workroom
from cfel.world import World

_LOG = logging.getLogger(__name__)
_TRY_AGAIN_SECONDS = 0.2
_QUICK_SECONDS = 2.0

Close = Callable[[Ledger, FloatArray], Ledger]


class DeposedError(DeploymentError):
    """This coordinator's term is over."""


class Coordinator:
    """One term in office.

    Args:
        world: what is run.
        simulation: accounts, evaluation, when to stop.
        deployment: deadlines.
        term: of office.
        calls: how it reaches the edge servers, its own included.
        workroom: where plans are made.
        in_office: whether it still may act.
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
        workroom: Workroom,
        in_office: Callable[[], bool],
        number: int,
        on_refusal: OnRefusal,
    ) -> None:
        self._on_refusal = on_refusal
        self._world, self._simulation, self._deployment = world, simulation, deployment
        self._term, self._calls, self._workroom, self._in_office = term, calls, workroom, in_office
        self._edges = range(world.fleet.clusters)
        self._number = number
        self._missing: set[int] = set()
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
        await self._ask_once("farewell", {"missing": sorted(self._missing)}, _QUICK_SECONDS)

    async def _take_over(self) -> Control:
        """The newest control that anybody knows; before the first round, waits for everybody to be there."""
        deadline = time.monotonic() + self._deployment.join_seconds
        while True:
            answers = await self._ask_once("newest", {}, _QUICK_SECONDS)
            known = [from_json(each.header["control"]) for each in answers.values() if each.header["control"]]
            if known and 2 * len(answers) > len(self._edges):
                return max(known, key=lambda control: control.newness)
            there = sum(len(each.header["connected"]) for each in answers.values())
            complete = len(answers) == len(self._edges) and there == self._world.fleet.devices
            overdue = time.monotonic() > deadline and 2 * len(answers) > len(self._edges)
            if not known and (complete or overdue):
                return first_control(self._world, measures=self._deployment.measures)
            await asyncio.sleep(_TRY_AGAIN_SECONDS)

    async def _edge_round(self, control: Control) -> Control:
        if control.plan is None:
            control = await self._planned(control)
        answers = await self._ask_all(
            "plan", control, self._deployment.round_seconds, {"control": to_json(control)}
        )
        return self._counted(control, answers)

    async def _planned(self, control: Control) -> Control:
        world, at = self._world, (control.rounds_done, control.edge_round)
        conditions = world.fleet.conditions(world.seed, *at, world.model_bits, control.spent_joules)
        away = np.zeros(world.fleet.devices, dtype=bool)
        away[list(control.absent)] = True
        conditions = conditions.without(away)
        available = tuple(conditions.available.tolist())
        if wants_estimates(world, control.estimates):
            asked = {"available": available}
            answers = await self._ask_all("estimate", control, self._deployment.round_seconds, asked)
            control = replace(control, estimates=_fresh(control, answers), measured=_told(control, answers))
        if control.measured is not None:
            conditions = conditions_by(control.measured.devices, conditions)
        for device in beyond_belief(control.estimates):
            self._on_refusal(Identity("device", device), "plan", "its σ² and G² are beyond belief")
        seen = observed(world, self._simulation, control, at[1], conditions, control.estimates)
        if control.measured is not None:
            seen = foreseen(world, control.measured, seen)
        plan, scheme = await self._workroom.do(lambda: world.scheme.plan(control.scheme, seen))
        return replace(control, plan=plan, scheme=scheme, available=available)

    def _counted(self, control: Control, answers: Mapping[int, Message]) -> Control:
        """The control after an edge round, from what edge servers told of it."""
        if control.plan is None:
            raise DeploymentError("an edge round without a plan cannot be counted")
        rows = sorted(
            (row for each in answers.values() for row in each.header["work"]), key=lambda row: row[0]
        )
        arrived = {row[0] for row in rows}
        there = {n for each in answers.values() for n in each.header["connected"]}
        asked = np.flatnonzero(control.available).tolist()
        done = Done(
            control.edge_round,
            tuple(n in arrived for n in range(self._world.fleet.devices)),
            control.plan,
            tuple(Work(*row[:4]) for row in rows),
        )
        if control.measured is not None:
            done = self._by_the_clock(done, answers)
        result = outcome(self._world, self._simulation, control.rounds_done, done)
        estimates = list(control.estimates)
        for device, *_, sigma2, g2, kept in rows:
            estimates[device] = None if sigma2 is None else estimates_from(sigma2, g2, tuple(kept))
        after = replace(
            control,
            edge_round=control.edge_round + 1,
            step=0,
            expected=after_edge_round(control.expected, result.expected),
            realised=after_edge_round(control.realised, result.realised),
            spent_joules=control.spent_joules + result.joules,
            estimates=tuple(estimates),
            done=(*control.done, done),
            absent=tuple(n for n in {*asked, *control.absent} if n not in arrived and n not in there),
            plan=None,
            available=(),
            measured=_told(control, answers),
        )
        if after.measured is None or done.clocked is None:
            return after
        realised = after_clocked(control.realised, result, done.clocked)
        return replace(after, realised=realised, measured=beside(after.measured, result, done.clocked))

    def _by_the_clock(self, done: Done, answers: Mapping[int, Message]) -> Done:
        headers = {i: each.header for i, each in answers.items()}
        told = clocked(self._world, headers, self._since_last_count())
        return replace(done, plan=as_asked(done.plan, rows_in(headers.values())), clocked=told)

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
        told = replace(control.measured, exchange=control.measured.exchange.after(seconds, 1))
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
        await self._ask_all("close", control, self._deployment.gossip_seconds, written)
        return replace(after, began=time.time()), last

    async def _gossiped(self, control: Control, after: Control, looks: bool) -> Control:
        """Has everybody do a gossip step: first all fetch, then all mix with the weights of who is there."""
        seconds = self._deployment.gossip_seconds
        live = [i for i in self._edges if i not in self._missing]
        fetched = await self._ask_all("fetch", control, seconds, {"live": live})
        there = {
            i: each.header for i, each in fetched.items() if tuple(each.header["position"]) >= control.at
        }
        # Whoever has mixed already did so with weights that the others have to use as well.
        settled = [header["rows"] for header in there.values() if header["rows"] is not None]
        at_once = self._world.scheme.gossip.reach == "everybody"
        got = {i: header["got"] for i, header in there.items()}
        rows = settled[0] if settled else rows_for(self._world.backhaul, got, at_once=at_once)
        order = {"rows": rows, "evaluate": looks, "control": to_json(control)}
        told = await self._ask_all("mix", control, seconds, order, only=there)
        digests, metrics = list(after.digests), list(after.metrics)
        for i, each in told.items():
            digests[i] = each.header["digest"]
            if each.header["metric"] is not None:
                metrics[i] = each.header["metric"]
        return replace(after, digests=tuple(digests), metrics=tuple(metrics))

    async def _accuracy(self, control: Control) -> float:
        if self._simulation.evaluate_on == "edge":
            return mean_metric(self._world, control.metrics)
        own = await self._ask_once("mean_metric", {}, self._deployment.gossip_seconds, only=[self._number])
        if not own:
            raise UnreachableError("the mean model could not be evaluated")
        return float(own[self._number].header["metric"])

    async def _ask_all(
        self,
        method: str,
        control: Control,
        seconds: float,
        fields: Mapping[str, Any],
        only: Iterable[int] | None = None,
    ) -> dict[int, Message]:
        """Asks edge servers until each has answered or the deadline is over; those that did.

        One that missed a deadline is asked only once from then on, until it answers again.
        """
        # What an edge server itself waits for others comes on top.
        deadline = time.monotonic() + seconds + self._deployment.gossip_seconds
        message = Message({"term": self._term, "at": control.at, **fields})
        edges = list(self._edges if only is None else only)
        answers = await asyncio.gather(*(self._ask(i, method, message, deadline) for i in edges))
        return {i: each for i, each in zip(edges, answers, strict=True) if each is not None}

    async def _ask(self, edge: int, method: str, message: Message, deadline: float) -> Message | None:
        while True:
            if not self._in_office():
                raise DeposedError(f"term {self._term} is over")
            left = max(deadline - time.monotonic(), _QUICK_SECONDS)
            try:
                answer = await self._calls.call(Identity("edge", edge), method, message, left)
            except RefusedError as error:
                if "stale term" in str(error):
                    raise DeposedError(str(error)) from error
                _LOG.warning("%s: %s", method, error)
                return None
            except UnreachableError as error:
                if edge in self._missing or time.monotonic() > deadline:
                    _LOG.warning("%s: edge server %d is left out: %s", method, edge, error)
                    self._missing.add(edge)
                    return None
                await asyncio.sleep(_TRY_AGAIN_SECONDS)
                continue
            self._missing.discard(edge)
            return answer

    async def _ask_once(
        self, method: str, fields: Mapping[str, Any], seconds: float, only: Iterable[int] | None = None
    ) -> dict[int, Message]:
        async def ask(edge: int) -> Message | None:
            try:
                return await self._calls.call(Identity("edge", edge), method, Message(fields), seconds)
            except (UnreachableError, RefusedError) as error:
                _LOG.info("%s: %s", method, error)
                return None

        if not self._in_office():
            raise DeposedError(f"term {self._term} is over")
        edges = list(self._edges if only is None else only)
        answers = await asyncio.gather(*(ask(i) for i in edges))
        return {i: each for i, each in zip(edges, answers, strict=True) if each is not None}


def _fresh(control: Control, answers: Mapping[int, Message]) -> tuple[Estimates | None, ...]:
    estimates = list(control.estimates)
    for each in answers.values():
        for device, sigma2, g2 in each.header["estimates"]:
            before = control.estimates[device]
            estimates[device] = estimates_from(sigma2, g2, () if before is None else before.kept_energy)
    return tuple(estimates)


def _told(control: Control, answers: Mapping[int, Message]) -> Measured | None:
    if control.measured is None:
        return None
    return control.measured.told(rows_in(each.header for each in answers.values()))
