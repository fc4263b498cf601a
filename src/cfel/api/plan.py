"""A plan for a fleet of named devices: what `cfel plan` prints and `cfel.plan` returns."""

import csv
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cfel import validation
from cfel.api.fleet_file import NamedProblem, OptionName, RunLength, make_length, read_problem
from cfel.arrays import FloatArray
from cfel.control import solve
from cfel.control.caps import Budget, Rounds
from cfel.control.curves import Grid, add_curves, make_curve
from cfel.control.planning import plan_by_scheme
from cfel.control.problem import (
    MOST_SENTENCES,
    ROUNDING,
    RoundProblem,
    Solution,
    Unreachable,
    find_feasible_limits,
)
from cfel.control.scheme import Observation, RoundPlan, Scheme, SchemeBuilder, SchemeParameters
from cfel.control.schemes import build_scheme
from cfel.control.segments import PricedFleet
from cfel.control.solve import Method
from cfel.cost import cluster_seconds, device_joules, device_seconds, open_ledger
from cfel.errors import BudgetWarning, FleetFileError, InputError
from cfel.plugins import ANY_CODE, CodePolicy, import_from, label_object, parse_variants
from cfel.system.batch_shares import DEFAULT_OVERHEAD, LAYER_SHARES, BatchShares
from cfel.system.conditions import Conditions
from cfel.wording import format_amount, plural

PROBLEM_OPTIONS = (
    *("tau", "sigma2", "g2", "time_cap", "energy_cap", "rho_min", "theta_min", "noise_weight"),
    "on_unreachable",
)
SCHEME_OPTIONS = ("scheme_options", "batch", "step_overhead", "seed")
HCEF, HCEF_PLUS = "hcef", "hcef_plus"
"""The scheme that solves the problem of the table itself, with bounds per device; and the default."""
_DOCUMENT = (
    *("rho", "theta", "speed", "local_steps", "objective", "lower_bound", "gap", "feasible", "violations"),
    *("device_seconds", "device_joules", "time_cap", "energy_cap", "multiplier", "method", "iterations"),
)

_OWN = ("speed", "local_steps")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class FleetPlan:
    """How much each device of a fleet computes and sends in one edge round, and how good that is.

    Attributes:
        named: the problem, with the names of devices and clusters.
        solution: its solution, by device number.
        scheme: who planned.
        clock: share of its clock that each device is to run at; None where the scheme leaves clocks alone.
        local_steps: steps that each device is to take, on a part of its batch that costs a share ρ of all τ
            full ones; None where devices take a share ρ of the steps.
    """

    named: NamedProblem
    solution: Solution
    scheme: str = HCEF
    clock: FloatArray | None = None
    local_steps: int | None = None

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices, in the order of all arrays."""
        return self.named.device_names

    @property
    def rho(self) -> FloatArray:
        """Share of the local steps, or of their computing, per device."""
        return self.solution.rho

    @property
    def theta(self) -> FloatArray:
        """Share of the update that is sent, per device."""
        return self.solution.theta

    @property
    def speed(self) -> FloatArray:
        """Share of its clock that each device is to run at; 1 where the scheme leaves clocks alone."""
        return np.ones(len(self.devices)) if self.clock is None else self.clock

    @property
    def objective(self) -> float:
        """What the scheme minimised; NaN where it solves no problem."""
        return self.solution.objective

    @property
    def gap(self) -> float:
        """How much worse than the optimum this can be at most; NaN where the scheme solves no problem."""
        return self.solution.gap

    @property
    def seconds(self) -> float:
        """Expected time of the slowest device."""
        return self.solution.seconds

    @property
    def joules(self) -> float:
        """Expected energy of all devices together."""
        return self.solution.joules

    @property
    def feasible(self) -> bool:
        """Whether every cap was met as asked."""
        return self.solution.feasible

    @property
    def violations(self) -> tuple[str, ...]:
        """What could not be met, in words with the fleet's own names."""
        # The solver knows numbers only.
        names = {"cluster": self.named.cluster_names, "device": self.named.device_names}
        return tuple(
            re.sub(r"^(cluster|device) (\d+)", lambda it: f"{it[1]} {names[it[1]][int(it[2])]}", words)
            for words in self.solution.violations
        )

    @property
    def limited_by(self) -> NDArray[np.str_]:
        """What keeps each device from doing more, in one word; see `MEANING`."""
        return find_binding_limits(self.named.problem, self.solution)

    @property
    def columns(self) -> dict[str, Sequence[Any]]:
        """The plan as columns, one entry per device; `pandas.DataFrame(plan.columns)` is its frame."""
        cluster_names = self.named.cluster_names
        return {
            "device": list(self.named.device_names),
            "cluster": [cluster_names[number] for number in self.named.problem.cluster],
            "rho": self.rho.tolist(),
            "theta": self.theta.tolist(),
            **({} if self.clock is None else {"speed": self.clock.tolist()}),
            "seconds": self.solution.device_seconds.tolist(),
            "joules": self.solution.device_joules.tolist(),
            "limited_by": self.limited_by.tolist(),
        }

    def to_document(self) -> dict[str, Any]:
        """The scheme, the fields of the solution by name, and clocks."""
        found = {name: getattr(self if name in _OWN else self.solution, name) for name in _DOCUMENT}
        return {"scheme": self.scheme, **found}

    def write_csv(self, path: str | PathLike[str]) -> None:
        """Writes one line per device.

        Raises:
            FleetFileError: the file cannot be written.
        """
        columns = self.columns
        try:
            with Path(path).open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow(columns)
                writer.writerows(zip(*columns.values(), strict=True))
        except OSError as error:
            raise FleetFileError(f"{path}: cannot be written: {error}") from error

    def __repr__(self) -> str:
        return f"<FleetPlan: {', '.join(self._describe())}>"

    def _describe(self) -> list[str]:
        """The plan in a few words; costs are expected ones."""
        gap, broken = 100 * self.gap, len(self.violations)
        return [
            plural(len(self.devices), "device"),
            f"{format_amount(self.seconds, 1)} s and {format_amount(self.joules, 1)} J expected",
            "no proof" if math.isnan(gap) else f"at most {gap:.4f} % above the best plan",
            "all limits met" if self.feasible else f"{plural(broken, 'limit')} not met",
        ]

    def _repr_html_(self) -> str:
        """How a notebook shows it: the first devices, then what could not be met."""
        columns = self.columns
        head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in columns)
        shown = (
            [f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in values[:_MOST_SHOWN]]
            for values in columns.values()
        )
        body = "".join(
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>"
            for row in zip(*shown, strict=True)
        )
        more = max(0, len(self.devices) - _MOST_SHOWN)
        rest = f"<p>and {plural(more, 'device')} more</p>" if more else ""
        broken = "".join(f"<p>⚠ {escape(words)}</p>" for words in self.violations)
        title = escape(", ".join(self._describe()))
        return (
            f"<p><b>{title}</b></p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
            f"{rest}{broken}"
        )


# Rows of a plan in a notebook.
_MOST_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Margins:
    """What a little more would bring, and the curve around the plan."""

    price: float  # λ, what one more joule is worth in units of the objective
    # more_energy and more_time: by which share the objective falls with 1 % more energy, and more time.
    more_energy: float
    more_time: float
    curve: tuple[float, float]  # joules that the fleet would use at half the price, and at twice


def find_margins(plan: FleetPlan) -> Margins:
    """The margins of a plan that solves P2 itself: solved again with larger caps."""
    problem, solution = plan.named.problem, plan.solution
    larger = (
        replace(problem, energy_cap=1.01 * problem.energy_cap),
        replace(problem, time_cap=1.01 * problem.time_cap),
    )
    gains = [
        1.0 - solve(each).objective / solution.objective if solution.objective else 0.0 for each in larger
    ]
    scale = problem.sigma2 + problem.g2 or 1.0
    price = solution.multiplier / scale
    fleet = PricedFleet.from_problem(problem, find_feasible_limits(problem))
    total = add_curves(make_curve(fleet, Grid.of_prices(price * np.array([0.5, 2.0])))[0])
    lower, higher = total.joules[0, :, 0].tolist()
    # Rounding may say that more is worse.
    return Margins(solution.multiplier, max(gains[0], 0.0), max(gains[1], 0.0), (lower, higher))


def plan(
    table: object,
    *,
    time_cap: ArrayLike | None = None,
    energy_cap: float | None = None,
    tau: int | None = None,
    sigma2: float | None = None,
    g2: float | None = None,
    rho_min: ArrayLike | None = None,
    theta_min: ArrayLike | None = None,
    noise_weight: float | None = None,
    on_unreachable: Unreachable | None = None,
    time_budget: float | None = None,
    energy_budget: float | None = None,
    rounds: int | None = None,
    edge_rounds: int | None = None,
    method: Method | None = None,
    start: float | None = None,
    scheme: str | SchemeBuilder | None = None,
    scheme_options: Mapping[str, Any] | None = None,
    batch: int | None = None,
    step_overhead: float | None = None,
    seed: int | None = None,
) -> FleetPlan:
    """Plans one edge round of a fleet.

    HCEF solves the problem that the table and the options state. Any other scheme gets what it would observe
    before the first edge round of a simulation with these devices, and plans what it would plan there. The
    default is HCEF+; it is HCEF where the table or the options state what only HCEF knows: `method`, `start`,
    `noise_weight`, upper bounds, or bounds per device.

    Args:
        table: one row per device with the columns mu (s/step), alpha (J/step), nu (s per full upload), power
            (W) and cluster; optional: id, rho_min, rho_max, theta_min, theta_max, battery (J), and what a
            slower clock saves: clock_static, clock_exponent (0 and 2 by default). A path (.csv, .parquet or
            .json), a mapping of columns, a list of mappings, a pandas or polars frame, or an Arrow table.
        time_cap: seconds for this round, one number or one per cluster; default: no limit.
        energy_cap: joules for this round, all devices together; default: no limit.
        tau: local steps of the round, 5 by default.
        sigma2: variance of a mini-batch gradient, 1 by default.
        g2: squared norm of a local gradient, likewise.
        rho_min: least share of local steps, 0.1 by default.
        theta_min: least share of the update, 0.01 by default.
        noise_weight: weight of the noise term, 1 by default.
        on_unreachable: time caps that cannot be met: "stretch" them (default), or plan the "minimum" there.
        time_budget: seconds for a whole run, instead of a cap for the round.
        energy_budget: joules for a whole run, likewise.
        rounds: global rounds of that run.
        edge_rounds: edge rounds in each of them, 5 by default.
        method: "joint", with a proven gap, or "alternating", the paper's Algorithm 3; only HCEF's.
        start: initial ρ of "alternating"; only with HCEF.
        scheme: who plans, if not the default: a built-in scheme, also with variants ("hcef+slow_clocks"), an
            entry point, "module:function", or a function that builds one.
        scheme_options: `[scheme.options]` of the experiment file, as {"least_speed": 0.7} of "hcef_plus".
        batch: samples of a full batch, so that HCEF+ can plan smaller ones; without it, it plans whole steps.
        step_overhead: share of a step's cost that its batch does not change, 0.05 by default; likewise.
        seed: of schemes that draw, 0 by default.

    Warns:
        BudgetWarning: a limit could not be met; the plan's `violations` say the same.

    Raises:
        InputError: naming the field, the place and the value.
    """
    # The parameters are named like the options.
    given = {name: value for name, value in locals().items() if name != "table"}
    found = plan_fleet(table, given)
    for words in found.violations:
        warnings.warn(words, BudgetWarning, stacklevel=2)
    return found


def plan_fleet(table: object, given: Mapping[str, Any], option_name: OptionName = str) -> FleetPlan:
    """`plan` with its options in a mapping; None means not given, as in `plan`.

    `option_name` gives the name by which the user knows an option, for error messages.
    """
    stated = {name: value for name, value in given.items() if value is not None}
    length = make_length(stated, option_name)
    problem_options = {name: stated[name] for name in PROBLEM_OPTIONS if name in stated}
    named = read_problem(table, problem_options, length, option_name)
    if isinstance(table, str | Path):
        # A scheme of the user's own usually lies beside the table.
        import_from(Path(table).parent)
    scheme = stated.get("scheme") or _choose_scheme(named.problem, stated)
    method, start = stated.get("method", "joint"), stated.get("start")
    # The joint solver has no start, and a silently ignored option would mislead.
    if start is not None and method != "alternating":
        raise InputError(f"{option_name('start')}: only with {option_name('method')} alternating")
    if start is not None and scheme != HCEF:
        raise InputError(f"{option_name('start')}: only with the scheme hcef")
    if scheme == HCEF:
        _reject_stated(stated, SCHEME_OPTIONS, "only with another scheme than hcef", option_name)
        return FleetPlan(named, solve(named.problem, method, None if start is None else (start, 1.0)))
    return _plan_first_round(named, {**stated, "scheme": scheme}, length, option_name)


def _reject_stated(
    stated: Mapping[str, Any], names: Sequence[str], why: str, option_name: OptionName
) -> None:
    """Raises for the first of these options that is stated: an ignored option would mislead."""
    for name in names:
        if name in stated:
            raise InputError(f"{option_name(name)}: {why}")


def _choose_scheme(problem: RoundProblem, stated: Mapping[str, Any]) -> str:
    """HCEF+, or HCEF where something is stated that only it knows."""
    bounds = (problem.rho_min, problem.theta_min)
    only_hcef = (
        any(name in stated for name in ("method", "start", "noise_weight"))
        or any((most < 1).any() for most in (problem.rho_max, problem.theta_max))
        or any(np.ptp(bound) > 0 for bound in bounds)
    )
    return HCEF if only_hcef else HCEF_PLUS


# How close to a limit counts as touching it.
TOUCH = 1e-6

MEANING = {
    "full": "at full work: the upper bounds of ρ and θ",
    "time": "limited by time: the cluster's whole time cap is used",
    "battery": "limited by battery: all that it allows in this round is used",
    "energy": "limited by energy: a joule helps more on another device",
    "noise": "limited by noise: more steps would add more noise than progress",
    "floor": "at the floor: the lower bounds of ρ and θ",
    "over": "over the time cap: more time than was asked for",
    "scheme": "limited by the scheme: it asks for no more",
    "idle": "idle: left out of this round",
}
"""What each word of `FleetPlan.limited_by` says of a device, after a number of devices."""


def find_binding_limits(problem: RoundProblem, solution: Solution) -> NDArray[np.str_]:
    """Finds what limits each device; returns one word of `MEANING` per device."""
    rho, theta = solution.rho, solution.theta
    cap = solution.time_cap[problem.cluster]
    timed = solution.device_seconds >= cap * (1 - TOUCH)
    full = (rho >= problem.rho_max - TOUCH) & (theta >= problem.theta_max - TOUCH)
    floor = (rho <= problem.rho_min + TOUCH) & (theta <= problem.theta_min + TOUCH)
    battery = np.inf if problem.battery is None else problem.battery
    drained = solution.device_joules >= battery * (1 - TOUCH)
    idle = (rho == 0) & (theta == 0)
    over = solution.device_seconds > problem.time_cap[problem.cluster] * (1 + TOUCH)
    if math.isnan(solution.multiplier):
        # Only a scheme itself knows what energy is worth to it, and what holds a device at its least.
        return np.select(
            [idle, full, drained, over, timed],
            ["idle", "full", "battery", "over", "time"],
            default="scheme",
        )
    priced = (solution.multiplier > 0) & (problem.joules(problem.rho_max, problem.theta_max) > 0)
    # A device over a cap that could not be met is at its lower bounds for that reason, not held by the cap.
    return np.select(
        [idle, full, drained, floor & over, timed, floor, priced],
        ["idle", "full", "battery", "floor", "time", "floor", "energy"],
        default="noise",
    )


def _plan_first_round(
    named: NamedProblem, stated: Mapping[str, Any], length: RunLength | None, option_name: OptionName
) -> FleetPlan:
    """Plans the first edge round of a run of that length, None for a run of this round only.

    The scheme gets the observation that it would get in a simulation, and is asked in the same way. The plan
    is not feasible if it exceeds a cap, whatever the scheme says.
    """
    name, found, code = _find_scheme(stated["scheme"], stated.get("scheme_options", {}))
    bounds = _read_bounds(named.problem, found.name, option_name)
    scheme = build_scheme(replace(found, solver=stated.get("method", "joint"), **bounds), code)
    observation = replace(
        _observe(named.problem, length, option_name),
        seed=validation.check_whole("seed", stated.get("seed", 0), least=0),
        small_batches=_find_small_batches(scheme, found.steps, stated, option_name),
    )
    plan, _ = plan_by_scheme(scheme, scheme.init(), observation)
    solution = _count(named.problem, observation, plan, name)
    if scheme.keeps_budgets and named.problem.on_unreachable == "stretch":
        # Such a scheme exceeds a time cap only where it had to stretch it.
        used = cluster_seconds(solution.device_seconds, named.problem.cluster, named.problem.clusters)
        solution = replace(solution, time_cap=np.maximum(solution.time_cap, used))
    return FleetPlan(named, solution, name, plan.speed, plan.local_steps)


def _find_scheme(
    scheme: str | SchemeBuilder, options: Mapping[str, Any]
) -> tuple[str, SchemeParameters, CodePolicy]:
    """What the plan calls a scheme, its parameters as far as they are known, and where its code is."""
    if isinstance(scheme, str):
        return scheme, SchemeParameters(**parse_variants(scheme), options=options), ANY_CODE
    name = label_object("scheme", scheme)
    return name, SchemeParameters(name, options=options), ANY_CODE.add_objects({name: scheme})


def _read_bounds(problem: RoundProblem, scheme: str, option_name: OptionName) -> dict[str, Any]:
    """The keys of `[scheme]` that the problem states."""
    for name in ("rho_max", "theta_max"):
        if (getattr(problem, name) < 1).any():
            raise InputError(f"{name}: only with the scheme hcef; for {scheme} it is 1 everywhere")
    for name in ("rho_min", "theta_min"):
        if np.ptp(getattr(problem, name)) > 0:
            raise InputError(
                f"{option_name(name)}: one value per device is only for the scheme hcef; {scheme} takes one"
            )
    return {
        "rho_min": float(problem.rho_min[0]),
        "theta_min": float(problem.theta_min[0]),
        "noise_weight": problem.noise_weight,
        "on_unreachable": problem.on_unreachable,
    }


def _find_small_batches(
    scheme: Scheme, asked: str, stated: Mapping[str, Any], option_name: OptionName
) -> BatchShares | None:
    """What ρ is in samples or layers, where the scheme plans so; the user asked for these steps."""
    if scheme.device_overrides.steps != "small_batches":
        why = "only with small batches, as in hcef_plus+small_batches"
        _reject_stated(stated, ("batch", "step_overhead"), why, option_name)
        return LAYER_SHARES if scheme.device_overrides.steps == "last_layers" else None
    if "batch" not in stated:
        if asked != "small_batches":
            return None
        raise InputError(
            f"{option_name('batch')}: required with small batches, which are parts of a full one"
        )
    batch = validation.check_whole(option_name("batch"), stated["batch"], least=1)
    overhead = stated.get("step_overhead", DEFAULT_OVERHEAD)
    return BatchShares(
        batch, validation.check_number(option_name("step_overhead"), overhead, least=0, below=1)
    )


def _observe(problem: RoundProblem, length: RunLength | None, option_name: OptionName) -> Observation:
    """What a scheme knows before the first edge round of a run with these caps, or these budgets."""
    edge_rounds, run = (1, 1) if length is None else (length.edge_rounds, length.rounds * length.edge_rounds)
    rounds = Rounds(run // edge_rounds, edge_rounds, problem.tau)
    caps, most = problem.time_cap, float(problem.time_cap.max())
    for name, cap in (("time_cap", most), ("energy_cap", problem.energy_cap)):
        # A problem may have been overspent; a run begins with something to spend.
        validation.check_number(option_name(name), cap, above=0, finite=False)
    if math.isinf(most) and np.isfinite(caps).any():
        raise InputError(f"{option_name('time_cap')}: limits all clusters or none, where a scheme plans")
    seconds = None if length is None else length.time_budget
    joules = None if length is None else length.energy_budget
    everybody = np.ones(problem.devices)
    return Observation(
        global_round=0,
        edge_round=0,
        rounds=rounds,
        conditions=Conditions(
            mu=problem.mu,
            alpha=problem.alpha,
            nu=problem.nu,
            power=problem.power,
            available=everybody > 0,
            clock_static=problem.clock_static,
            clock_exponent=problem.clock_exponent,
        ),
        cluster=problem.cluster,
        sigma2=problem.sigma2 * everybody,
        g2=problem.g2 * everybody,
        ledger=open_ledger(problem.clusters),
        # A scheme knows totals (`Observation.caps()`): what a cap or a battery allows in this round is one
        # round's share of such a total.
        budget=Budget(
            most * run if seconds is None else seconds, problem.energy_cap * run if joules is None else joules
        ),
        # A cluster with less time than others has as much less as if its edge server were busy meanwhile.
        gossip_seconds_left=np.zeros(problem.clusters) if math.isinf(most) else (most - caps) * edge_rounds,
        battery=None if problem.battery is None else problem.battery * run,
    )


def _count(problem: RoundProblem, observation: Observation, plan: RoundPlan, scheme: str) -> Solution:
    """The plan with what it costs, and what it exceeds."""
    now, tau = plan.apply_speed(observation.conditions), problem.tau
    seconds = device_seconds(plan.rho, plan.theta, tau, now.mu, now.nu)
    joules = device_joules(plan.rho, plan.theta, tau, now.alpha, now.nu, now.power)
    # A scheme that ignores caps, as CEF does, reports none of them as exceeded.
    violations = plan.violations or _find_excess(problem, seconds, joules)
    return Solution(
        rho=plan.rho,
        theta=plan.theta,
        objective=plan.objective,
        lower_bound=plan.lower_bound,
        feasible=plan.feasible and not violations,
        violations=violations,
        device_seconds=seconds,
        device_joules=joules,
        time_cap=problem.time_cap,
        energy_cap=problem.energy_cap,
        multiplier=math.nan,
        method=scheme,
    )


def _find_excess(problem: RoundProblem, seconds: FloatArray, joules: FloatArray) -> tuple[str, ...]:
    used = cluster_seconds(seconds, problem.cluster, problem.clusters)
    words = _describe_excess("cluster", used, problem.time_cap, "s")
    if (total := float(joules.sum())) > problem.energy_cap * (1 + ROUNDING):
        words.append(f"energy cap {problem.energy_cap:g} J: the plan takes {total:.6g} J")
    if problem.battery is not None:
        words += _describe_excess("device", joules, problem.battery, "J")
    return tuple(words)


def _describe_excess(what: str, used: FloatArray, allowed: FloatArray, unit: str) -> list[str]:
    over = np.flatnonzero(used > allowed * (1 + ROUNDING))
    words = [
        f"{what} {i}: may take {allowed[i]:g} {unit}, the plan takes {used[i]:.6g}"
        for i in over[:MOST_SENTENCES].tolist()
    ]
    left_out = len(over) - len(words)
    return [*words, f"… and {left_out} more {what}s"] if left_out else words
