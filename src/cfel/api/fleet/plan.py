"""A plan for a fleet of named devices: what `cfel plan` prints and `cfel.plan` returns."""

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cfel.api.fleet.binding_limits import find_binding_limits, find_scheme_limits
from cfel.api.fleet.problem_file import (
    NamedProblem,
    OptionName,
    RunLength,
    make_length,
    name_option,
    read_problem,
)
from cfel.api.fleet.scheme_plan import HCEF, SchemeRequest, plan_by_request
from cfel.arrays import FloatArray
from cfel.control import Solution, solve
from cfel.control.problem import Unreachable
from cfel.control.scheme import SchemeBuilder
from cfel.control.solver.solve import Method
from cfel.errors import FleetFileError, InputError
from cfel.plugins import import_from

_DOCUMENT = (
    *("rho", "theta", "speed", "objective", "lower_bound", "gap", "feasible", "violations"),
    *("device_seconds", "device_joules", "time_cap", "energy_cap", "multiplier", "method", "iterations"),
)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class FleetPlan:
    """How much each device of a fleet computes and sends in one edge round, and how good that is.

    Attributes:
        named: the problem, with the names of devices and clusters.
        solution: its solution, by device number.
        scheme: who planned.
        clock: share of its clock that each device is to run at; None where the scheme leaves clocks alone.
    """

    named: NamedProblem
    solution: Solution
    scheme: str = HCEF
    clock: FloatArray | None = None

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices, in the order of all arrays."""
        return self.named.device_names

    @property
    def rho(self) -> FloatArray:
        """Probability of each local step, per device."""
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
        return tuple(_insert_names(words, self.named) for words in self.solution.violations)

    @property
    def limited_by(self) -> NDArray[np.str_]:
        """What keeps each device from doing more, in one word; see `binding_limits.MEANING`."""
        find = find_binding_limits if self.scheme == HCEF else find_scheme_limits
        return find(self.named.problem, self.solution)

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
        found = {name: getattr(self if name == "speed" else self.solution, name) for name in _DOCUMENT}
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
        devices, gap = len(self.devices), 100 * self.gap
        met = "all limits met" if self.feasible else "; ".join(self.violations)
        costs = f"{self.seconds:.1f} s, {self.joules:.1f} J"
        proof = "no proof" if math.isnan(gap) else f"at most {gap:.4f} % above the best plan"
        return f"<FleetPlan: {devices} devices, {costs}, {proof}, {met}>"


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
    method: Method = "joint",
    start: float | None = None,
    scheme: str | SchemeBuilder = HCEF,
    scheme_options: Mapping[str, Any] | None = None,
    batch: int | None = None,
    step_overhead: float | None = None,
    seed: int | None = None,
) -> FleetPlan:
    """Plans one edge round of a fleet.

    HCEF solves the problem that the table and the options state. Any other scheme gets what it would observe
    before the first edge round of a simulation with these devices, and plans what it would plan there.

    Args:
        table: one row per device with the columns mu (s/step), alpha (J/step), nu (s per full upload), power
            (W) and cluster; optional: id, rho_min, rho_max, theta_min, theta_max, battery (J), and what a
            slower clock saves: clock_static, clock_exponent (0 and 2 by default). A path (.csv, .parquet or
            .json), a mapping of columns, a list of mappings, a pandas or polars frame, or an Arrow table.
        time_cap: seconds for this round, one number or one per cluster; default: no limit.
        energy_cap: joules for this round, all devices together; default: no limit.
        tau: local steps of the round, 5 by default.
        sigma2: variance of a mini-batch gradient, 1 by default.
        g2: squared norm of a local gradient, 1 by default.
        rho_min: least share of local steps, 0.1 by default.
        theta_min: least share of the update, 0.01 by default.
        noise_weight: weight of the noise term, 1 by default.
        on_unreachable: time caps that cannot be met: "stretch" them (default), or plan the "minimum" there.
        time_budget: seconds for a whole run, instead of a cap for the round.
        energy_budget: joules for a whole run, likewise.
        rounds: global rounds of that run.
        edge_rounds: edge rounds in each of them, 5 by default.
        method: "joint", with a proven gap, or "alternating", the paper's Algorithm 3.
        start: initial ρ of "alternating"; only with HCEF.
        scheme: who plans: a built-in scheme, also with variants ("hcef+slow_clocks"), an entry point,
            "module:function", or a function that builds one.
        scheme_options: `[scheme.options]` of the experiment file, as {"least_speed": 0.7} of "hcef_plus".
        batch: samples of a full batch; required with small batches ("hcef_plus+small_batches").
        step_overhead: share of a step's cost that its batch does not change, 0.05 by default; likewise.
        seed: of schemes that draw, 0 by default.

    Raises:
        InputError: naming the field, the place and the value.
    """
    given: Mapping[str, object] = {
        "tau": tau,
        "sigma2": sigma2,
        "g2": g2,
        "time_cap": time_cap,
        "energy_cap": energy_cap,
        "rho_min": rho_min,
        "theta_min": theta_min,
        "noise_weight": noise_weight,
        "on_unreachable": on_unreachable,
    }
    options = {field: value for field, value in given.items() if value is not None}
    length = make_length(options, time_budget, energy_budget, rounds, edge_rounds, str)
    named = read_problem(table, options, length, str)
    if isinstance(table, str | Path):
        # A scheme of the user's own usually lies beside the table.
        import_from(Path(table).parent)
    request = SchemeRequest(scheme, scheme_options, batch, step_overhead, seed)
    return plan_fleet(named, request, length, method, start, str)


def plan_fleet(
    named: NamedProblem,
    request: SchemeRequest,
    length: RunLength | None,
    method: Method,
    start: float | None,
    option_name: OptionName = name_option,
) -> FleetPlan:
    """Plans a round of a fleet with the scheme that was asked for; other arguments as in `plan`."""
    # The joint solver has no start, and a silently ignored option would mislead.
    if start is not None and method != "alternating":
        raise InputError(f"{option_name('start')}: only with {option_name('method')} alternating")
    if start is not None and request.scheme != HCEF:
        raise InputError(f"{option_name('start')}: only with the scheme hcef")
    if request.scheme == HCEF:
        given = ("scheme_options", "batch", "step_overhead", "seed")
        request.reject_given(given, "only with another scheme than hcef", option_name)
        return FleetPlan(named, solve(named.problem, method, None if start is None else (start, 1.0)))
    solution, clock = plan_by_request(named.problem, request, method, length, option_name)
    return FleetPlan(named, solution, request.name, clock)


def _insert_names(words: str, named: NamedProblem) -> str:
    """The sentence with the names of the file instead of cluster and device numbers."""
    # The solver knows numbers only.
    names = {"cluster": named.cluster_names, "device": named.device_names}
    return re.sub(
        r"^(cluster|device) (\d+)", lambda found: f"{found[1]} {names[found[1]][int(found[2])]}", words
    )
