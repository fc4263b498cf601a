"""What the coordinator knows: a value that travels with every command, so that a successor can resume there.

It is the controller's state (`rounds.kernel`) with the place in the round, the devices' estimates and what
edge servers reported. Here are also its JSON form and how answers of edge servers change it; pure.
"""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from cfel.control.scheme import RoundPlan
from cfel.cost import Ledger
from cfel.deployment.measurement.measured_rounds import (
    EdgeRoundMeasurements,
    FederationMeasurements,
    add_overhead,
    advance_ledger,
    apply_measured_costs,
    apply_reports,
    collect_measurements,
    edge_round_from_json,
    edge_round_to_json,
    measurements_from_json,
    measurements_to_json,
    read_rows,
    use_actual_orders,
)
from cfel.deployment.positions import Position
from cfel.errors import DeploymentError
from cfel.learning.local.estimates import (
    Estimates,
    check_estimates,
    decode_estimates,
    encode_estimates,
    refresh_estimates,
)
from cfel.rounds.kernel import (
    ControlState,
    DeviceWork,
    EdgeRoundOutcome,
    charge_edge_round,
    count_costs,
    initial_control,
)
from cfel.rounds.parameters import SimulationParameters
from cfel.world import World

Answers = Mapping[int, Mapping[str, Any]]
"""Headers of the edge servers' answers, by edge server."""


@dataclass(frozen=True, slots=True, eq=False)
class FinishedEdgeRound:
    """A finished edge round: who took part, the plan, what was done, and what clocks measured."""

    edge_round: int
    available: tuple[bool, ...]
    plan: RoundPlan
    work: tuple[DeviceWork, ...]
    clocked: EdgeRoundMeasurements | None = None


@dataclass(frozen=True, slots=True, eq=False)
class CoordinatorState:
    """The coordinator's knowledge at one point of the run.

    Attributes:
        control: finished global rounds, the scheme's state, and what has been spent.
        edge_round: edge rounds done in this global round.
        step: gossip steps done since the last of them.
        estimates: every device's newest σ² and G².
        done: finished edge rounds of this global round.
        absent: devices that missed their last order and were not connected any more.
        digests, metrics: of every edge model after the last gossip step.
        began: wall clock at the start of this global round.
        plan: of the next edge round, once there is one.
        available: who takes part in it.
        measured: what devices and clocks measured, where conditions are measured.
    """

    control: ControlState
    edge_round: int
    step: int
    estimates: tuple[Estimates | None, ...]
    done: tuple[FinishedEdgeRound, ...]
    absent: tuple[int, ...]
    digests: tuple[str, ...]
    metrics: tuple[float, ...]
    began: float
    plan: RoundPlan | None = None
    available: tuple[bool, ...] = ()
    measured: FederationMeasurements | None = None

    @property
    def at(self) -> Position:
        """Where the federation is."""
        return self.control.rounds_done, self.edge_round, self.step

    @property
    def newness(self) -> tuple[Position, bool]:
        """Later states are larger."""
        return self.at, self.plan is not None


def initial_coordinator_state(world: World, *, measures: bool = False) -> CoordinatorState:
    """Before the first round."""
    clusters, devices = world.setting.fleet.clusters, world.setting.fleet.devices
    return CoordinatorState(
        control=initial_control(world.setting),
        edge_round=0,
        step=0,
        estimates=(None,) * devices,
        done=(),
        absent=(),
        digests=(world.start.sha256().hex(),) * clusters,
        metrics=(0.0,) * clusters,
        began=time.time(),
        measured=FederationMeasurements((None,) * devices) if measures else None,
    )


def add_estimates(state: CoordinatorState, answers: Answers) -> CoordinatorState:
    """The state with fresh σ² and G²."""
    estimates = list(state.estimates)
    for each in answers.values():
        for device, sigma2, g2 in each["estimates"]:
            fresh = check_estimates(Estimates(sigma2, g2))
            estimates[device] = refresh_estimates(state.estimates[device], fresh)
    return replace(state, estimates=tuple(estimates), measured=_add_reports(state, answers))


def add_edge_round(
    world: World, simulation: SimulationParameters, state: CoordinatorState, answers: Answers, seconds: float
) -> CoordinatorState:
    """The state after an edge round.

    Args:
        world: what is run.
        simulation: which account counts.
        state: with the plan that was carried out.
        answers: what the edge servers reported about it.
        seconds: by the coordinator's clock since the previous count.
    """
    if state.plan is None:
        raise DeploymentError("an edge round without a plan cannot be counted")
    rows = sorted((row for each in answers.values() for row in each["work"]), key=lambda row: row[0])
    arrived = {row[0] for row in rows}
    connected = {n for each in answers.values() for n in each["connected"]}
    asked = np.flatnonzero(state.available).tolist()
    finished = FinishedEdgeRound(
        state.edge_round,
        tuple(n in arrived for n in range(world.setting.fleet.devices)),
        state.plan,
        tuple(DeviceWork(*row[:4]) for row in rows),
    )
    if state.measured is not None:
        plan = use_actual_orders(finished.plan, read_rows(answers.values()))
        finished = replace(finished, plan=plan, clocked=collect_measurements(world, answers, seconds))
    outcome = count_edge_round(world, simulation, state.control.rounds_done, finished)
    estimates = list(state.estimates)
    for device, *_, found in rows:
        estimates[device] = decode_estimates(found)
    after = replace(
        state,
        control=charge_edge_round(state.control, outcome),
        edge_round=state.edge_round + 1,
        step=0,
        estimates=tuple(estimates),
        done=(*state.done, finished),
        absent=tuple(n for n in {*asked, *state.absent} if n not in arrived and n not in connected),
        plan=None,
        available=(),
        measured=_add_reports(state, answers),
    )
    if after.measured is None or finished.clocked is None:
        return after
    realised = advance_ledger(state.control.realised, outcome, finished.clocked)
    return replace(
        after,
        control=replace(after.control, realised=realised),
        measured=add_overhead(after.measured, outcome, finished.clocked),
    )


def _add_reports(state: CoordinatorState, answers: Answers) -> FederationMeasurements | None:
    return None if state.measured is None else state.measured.add_reports(read_rows(answers.values()))


def count_edge_round(
    world: World, parameters: SimulationParameters, global_round: int, finished: FinishedEdgeRound
) -> EdgeRoundOutcome:
    """The costs of a finished edge round, as measured where clocks measured it."""
    conditions = world.setting.conditions(global_round, finished.edge_round)
    conditions = replace(conditions, available=np.array(finished.available))
    if finished.clocked is not None:
        conditions = apply_reports(finished.clocked.devices, conditions)
    outcome = count_costs(world.setting, parameters, conditions, finished.plan, finished.work)
    return outcome if finished.clocked is None else apply_measured_costs(world, outcome, finished.clocked)


def to_json(state: CoordinatorState) -> dict[str, Any]:
    """Plain values; `from_json` gives back an equal state, bit for bit."""
    control = state.control
    return {
        "rounds_done": control.rounds_done,
        "edge_round": state.edge_round,
        "step": state.step,
        "scheme": dict(control.scheme),
        "expected": control.expected.to_dict(),
        "realised": control.realised.to_dict(),
        "spent_joules": control.spent_joules.tolist(),
        "estimates": [encode_estimates(each) for each in state.estimates],
        "done": [
            {
                "edge_round": done.edge_round,
                "available": done.available,
                "plan": _plan_to_json(done.plan),
                "work": done.work,
                "clocked": edge_round_to_json(done.clocked),
            }
            for done in state.done
        ],
        "absent": state.absent,
        "digests": state.digests,
        "metrics": state.metrics,
        "began": state.began,
        "plan": None if state.plan is None else _plan_to_json(state.plan),
        "available": state.available,
        "measured": measurements_to_json(state.measured),
    }


def from_json(values: Mapping[str, Any]) -> CoordinatorState:
    """The state that `to_json` wrote."""
    control = ControlState(
        rounds_done=values["rounds_done"],
        scheme=values["scheme"],
        expected=Ledger.from_dict(values["expected"]),
        realised=Ledger.from_dict(values["realised"]),
        spent_joules=np.array(values["spent_joules"], dtype=np.float64),
    )
    return CoordinatorState(
        control=control,
        edge_round=values["edge_round"],
        step=values["step"],
        estimates=tuple(map(decode_estimates, values["estimates"])),
        done=tuple(_finished_from_json(each) for each in values["done"]),
        absent=tuple(values["absent"]),
        digests=tuple(values["digests"]),
        metrics=tuple(values["metrics"]),
        began=values["began"],
        plan=None if values["plan"] is None else plan_from_json(values["plan"]),
        available=tuple(values["available"]),
        measured=measurements_from_json(values.get("measured")),
    )


def _finished_from_json(values: Mapping[str, Any]) -> FinishedEdgeRound:
    return FinishedEdgeRound(
        values["edge_round"],
        tuple(values["available"]),
        plan_from_json(values["plan"]),
        tuple(DeviceWork(*each) for each in values["work"]),
        edge_round_from_json(values.get("clocked")),
    )


def _plan_to_json(plan: RoundPlan) -> dict[str, Any]:
    arrays = {name: getattr(plan, name) for name in ("rho", "theta", "speed")}
    return asdict(plan) | {name: None if each is None else each.tolist() for name, each in arrays.items()}


def plan_from_json(values: Mapping[str, Any]) -> RoundPlan:
    """A plan out of JSON."""
    arrays = {
        name: None if values[name] is None else np.array(values[name], dtype=np.float64)
        for name in ("rho", "theta", "speed")
    }
    return RoundPlan(**{**values, **arrays, "violations": tuple(values["violations"])})
