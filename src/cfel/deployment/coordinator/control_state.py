"""What the coordinator knows, as a value that travels with every plan; a successor goes on from there."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from cfel.arrays import FloatArray
from cfel.control.scheme import RoundPlan, State
from cfel.cost import Ledger, new_ledger
from cfel.deployment.measurement.measured_rounds import (
    EdgeRoundMeasurements,
    FederationMeasurements,
    apply_measured_costs,
    apply_reports,
    edge_round_from_json,
    edge_round_to_json,
    measurements_from_json,
    measurements_to_json,
)
from cfel.deployment.positions import Position
from cfel.learning.local.estimates import Estimates, decode_estimates, encode_estimates
from cfel.rounds import EdgeRoundOutcome, SimulationParameters, Work, counted
from cfel.system import Conditions
from cfel.world import World


@dataclass(frozen=True, slots=True, eq=False)
class Done:
    """A finished edge round: who took part, what was asked, what was done, and what clocks said of it."""

    edge_round: int
    available: tuple[bool, ...]
    plan: RoundPlan
    work: tuple[Work, ...]
    clocked: EdgeRoundMeasurements | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Control:
    """The coordinator's knowledge at one point of the run.

    Attributes:
        rounds_done: finished global rounds.
        edge_round: edge rounds done in this global round.
        step: gossip steps done since the last of them.
        scheme: the scheme's state.
        expected, realised: what has been spent, in both accounts.
        spent_joules: per device.
        estimates: every device's newest σ² and G².
        done: finished edge rounds of this global round.
        absent: devices that missed their last order and were not there any more.
        digests, metrics: of every edge model after the last gossip step.
        began: wall clock at the start of this global round.
        plan: of the edge round that comes next, once there is one.
        available: who takes part in it.
        measured: what devices and clocks told, where conditions are measured.
    """

    rounds_done: int
    edge_round: int
    step: int
    scheme: State
    expected: Ledger
    realised: Ledger
    spent_joules: FloatArray
    estimates: tuple[Estimates | None, ...]
    done: tuple[Done, ...]
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
        return self.rounds_done, self.edge_round, self.step

    @property
    def newness(self) -> tuple[Position, bool]:
        """Later ones are larger."""
        return self.at, self.plan is not None


def first_control(world: World, *, measures: bool = False) -> Control:
    """Before the first round."""
    clusters, devices = world.fleet.clusters, world.fleet.devices
    return Control(
        rounds_done=0,
        edge_round=0,
        step=0,
        scheme=world.scheme.init(),
        expected=new_ledger(clusters),
        realised=new_ledger(clusters),
        spent_joules=np.zeros(devices),
        estimates=(None,) * devices,
        done=(),
        absent=(),
        digests=(world.start.sha256().hex(),) * clusters,
        metrics=(0.0,) * clusters,
        began=time.time(),
        measured=FederationMeasurements((None,) * devices) if measures else None,
    )


def conditions_of(
    world: World, global_round: int, edge_round: int, available: tuple[bool, ...]
) -> Conditions:
    """The conditions of an edge round with a known set of participants."""
    found = world.fleet.conditions(world.seed, global_round, edge_round, world.model_bits)
    return replace(found, available=np.array(available))


def outcome(
    world: World, parameters: SimulationParameters, global_round: int, done: Done
) -> EdgeRoundOutcome:
    """What a finished edge round cost."""
    conditions = conditions_of(world, global_round, done.edge_round, done.available)
    if done.clocked is None:
        return counted(world, parameters, conditions, done.plan, done.work)
    conditions = apply_reports(done.clocked.devices, conditions)
    return apply_measured_costs(
        world, counted(world, parameters, conditions, done.plan, done.work), done.clocked
    )


def to_json(control: Control) -> dict[str, Any]:
    """Plain values; `from_json` gives back an equal control, bit for bit."""
    return {
        "rounds_done": control.rounds_done,
        "edge_round": control.edge_round,
        "step": control.step,
        "scheme": dict(control.scheme),
        "expected": control.expected.to_dict(),
        "realised": control.realised.to_dict(),
        "spent_joules": control.spent_joules.tolist(),
        "estimates": [encode_estimates(each) for each in control.estimates],
        "done": [
            {
                "edge_round": done.edge_round,
                "available": done.available,
                "plan": _plan_json(done.plan),
                "work": done.work,
                "clocked": edge_round_to_json(done.clocked),
            }
            for done in control.done
        ],
        "absent": control.absent,
        "digests": control.digests,
        "metrics": control.metrics,
        "began": control.began,
        "plan": None if control.plan is None else _plan_json(control.plan),
        "available": control.available,
        "measured": measurements_to_json(control.measured),
    }


def from_json(values: Mapping[str, Any]) -> Control:
    """The control that `to_json` wrote."""
    return Control(
        rounds_done=values["rounds_done"],
        edge_round=values["edge_round"],
        step=values["step"],
        scheme=values["scheme"],
        expected=Ledger.from_dict(values["expected"]),
        realised=Ledger.from_dict(values["realised"]),
        spent_joules=np.array(values["spent_joules"], dtype=np.float64),
        estimates=tuple(map(decode_estimates, values["estimates"])),
        done=tuple(_done(each) for each in values["done"]),
        absent=tuple(values["absent"]),
        digests=tuple(values["digests"]),
        metrics=tuple(values["metrics"]),
        began=values["began"],
        plan=None if values["plan"] is None else plan_from(values["plan"]),
        available=tuple(values["available"]),
        measured=measurements_from_json(values.get("measured")),
    )


def _done(values: Mapping[str, Any]) -> Done:
    return Done(
        values["edge_round"],
        tuple(values["available"]),
        plan_from(values["plan"]),
        tuple(Work(*each) for each in values["work"]),
        edge_round_from_json(values.get("clocked")),
    )


def _plan_json(plan: RoundPlan) -> dict[str, Any]:
    arrays = {name: getattr(plan, name) for name in ("rho", "theta", "speed")}
    return asdict(plan) | {name: None if each is None else each.tolist() for name, each in arrays.items()}


def plan_from(values: Mapping[str, Any]) -> RoundPlan:
    """A plan out of JSON."""
    arrays = {
        name: None if values[name] is None else np.array(values[name], dtype=np.float64)
        for name in ("rho", "theta", "speed")
    }
    return RoundPlan(**{**values, **arrays, "violations": tuple(values["violations"])})
