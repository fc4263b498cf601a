"""Watches run directories for the dashboard; only reads, and only what changed.

In a tree of runs (such as `cfel compare` writes) it follows the run whose log changed last, with the others
as curves. The current edge round is not in the files, and therefore not in the snapshot.
"""

import asyncio
import math
import tomllib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cfel import validation
from cfel.arrays import FloatArray, IntArray
from cfel.durable import translate_os_errors
from cfel.errors import CfelError, InputError, RunDirectoryError
from cfel.report.load import Run, find_runs, load_run, name_scheme, read_rows
from cfel.runlog import FleetDescription, PlanTable, RoundRecord
from cfel.status import ClusterStatus, Curve, DeviceStatus, LinkStatus, RoundPoint, Status, thin_history

MOST_POINTS = 1000
"""Rounds in a curve; of longer ones, evenly spaced rounds are kept."""
MOST_DEVICES = 1000
"""Devices listed; of larger fleets, the slowest of each cluster."""

_Signature = tuple[int, int]


@dataclass(frozen=True, slots=True)
class WatchedRun:
    """What was read from one run: its last plan table, if it has one, and when its log last changed."""

    run: Run
    plan: PlanTable | None
    unix_seconds: float


class RunWatcher:
    """Follows the newest run in a directory or a tree of them; it may hold no run yet."""

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise RunDirectoryError(f"{path} is not a directory")
        self._path = path.resolve()
        self._seen: dict[Path, tuple[_Signature, WatchedRun]] = {}
        self._status = Status(node=self._path.name, source="simulation")
        self.refresh()

    def snapshot(self) -> Status:
        """The state at the last refresh; does not touch the disk."""
        return self._status

    def refresh(self) -> bool:
        """Reads what changed; returns whether the snapshot did.

        A file that cannot be read becomes the snapshot's `problem`, and is tried again the next time.
        """
        before = self._status
        try:
            self._status = self._read()
        except CfelError as error:
            self._status = replace(before, problem=str(error))
        return self._status != before

    async def changes(self, seconds: float) -> AsyncIterator[None]:
        """Refreshes every `seconds` in a thread, and yields when something changed."""
        while True:
            if await asyncio.to_thread(self.refresh):
                yield
            await asyncio.sleep(seconds)

    def _read(self) -> Status:
        found = find_runs(self._path)
        self._seen = {path: entry for path, entry in self._seen.items() if path in found}
        rows = read_rows(self._path)
        for path in found:
            signature = _signature(path)
            if path not in self._seen or self._seen[path][0] != signature:
                self._seen[path] = (signature, _load_run(path, signature, rows.get(path)))
        if not found:
            return replace(self._status, phase="waiting", problem="")
        newest = max(found, key=lambda path: self._seen[path][0])
        others = [self._seen[path][1].run for path in found if path != newest]
        name = str(newest.relative_to(self._path.parent))
        return build_status(name, self._seen[newest][1], others)


def _signature(path: Path) -> _Signature:
    log = path / "rounds.jsonl"
    with translate_os_errors("read", log):
        stat = log.stat()
    return stat.st_mtime_ns, stat.st_size


def _load_run(path: Path, signature: _Signature, row: str | None) -> WatchedRun:
    run = load_run(path)
    run = run if row is None else replace(run, scheme=row)
    last = run.records[-1].round if run.records else 0
    # A table is written before its line, so the newest may belong to a round that is not logged yet.
    planned = [number for number in run.directory.plan_rounds() if number <= last]
    plan = run.directory.plan(planned[-1], run.fleet.devices) if planned else None
    return WatchedRun(run=run, plan=plan, unix_seconds=signature[0] / 1e9)


def build_status(node: str, watched: WatchedRun, others: Sequence[Run] = ()) -> Status:
    """Builds the snapshot of one run, called `node`, with the curves of others."""
    run, fleet = watched.run, watched.run.fleet
    last = run.records[-1] if run.records else None
    rounds = _read_rounds(run.experiment_toml)
    over = last is not None and _is_over(last, rounds, run.target, fleet)
    return Status(
        node=node,
        name=run.name,
        scheme=name_scheme(run.scheme),
        source="simulation",
        unix_seconds=watched.unix_seconds,
        phase="finished" if over else "training",
        round=(last.round if last else 0) + (not over),
        rounds=_whole(rounds.get("global")),
        edge_rounds=_whole(rounds.get("edge")),
        seconds=last.seconds_realised if last else 0.0,
        seconds_budget=fleet.seconds_budget,
        joules=last.joules_realised if last else 0.0,
        joules_budget=fleet.joules_budget,
        metric=fleet.metrics[0],
        target=run.target,
        straggler=last.straggler if last else None,
        slowest_cluster=last.slowest_cluster if last else None,
        clusters=_clusters(fleet, watched.plan),
        links=tuple(
            LinkStatus(a=a, b=b, weight=(fleet.mixing[a][b] + fleet.mixing[b][a]) / 2) for a, b in fleet.edges
        ),
        history=_history(run),
        curves=_curves(run, others),
    )


def _read_rounds(experiment_toml: str) -> dict[str, Any]:
    rounds = tomllib.loads(experiment_toml).get("rounds", {})
    return rounds if isinstance(rounds, dict) else {}


def _whole(value: object) -> int | None:
    """A number of rounds, if it is one: the experiment of a run that is watched is not checked otherwise."""
    try:
        return validation.check_whole("rounds", value, least=1)
    except InputError:
        return None


def _is_over(
    last: RoundRecord, rounds: dict[str, Any], target: float | None, fleet: FleetDescription
) -> bool:
    """Whether the run is finished; an interrupted run is not."""
    if last.round >= (_whole(rounds.get("global")) or math.inf) or last.ends_at_budget:
        return True
    # As in `rounds`, but from the files alone: the dashboard does not build the experiment.
    if rounds.get("stop") == "budget":
        seconds, joules = fleet.seconds_budget or math.inf, fleet.joules_budget or math.inf
        return last.seconds >= seconds or last.joules >= joules
    if rounds.get("stop") != "target" or target is None or last.accuracy is None:
        return False
    return fleet.metrics[0].reaches(last.accuracy, target)


def _curves(run: Run, others: Sequence[Run]) -> tuple[Curve, ...]:
    """The curves of other runs; the names include seeds where they differ."""
    alike = len({run.seed, *(other.seed for other in others)}) == 1
    names = [name_scheme(other.scheme) for other in others]
    return tuple(
        Curve(name=name if alike else f"{name}, seed {other.seed}", history=_history(other))
        for name, other in zip(names, others, strict=True)
        if other.records
    )


def _history(run: Run) -> tuple[RoundPoint, ...]:
    return thin_history(tuple(map(_point, run.records)), MOST_POINTS)


def _point(record: RoundRecord) -> RoundPoint:
    whose = "device" if record.personal_accuracy_mean is None else "personal"
    return RoundPoint(
        round=record.round,
        seconds=record.seconds_realised,
        joules=record.joules_realised,
        accuracy=record.accuracy,
        loss=record.loss,
        straggler=record.straggler,
        device_accuracy_mean=getattr(record, f"{whose}_accuracy_mean"),
        device_accuracy_worst=getattr(record, f"{whose}_accuracy_worst"),
        device_accuracy_spread=getattr(record, f"{whose}_accuracy_spread"),
    )


def _clusters(fleet: FleetDescription, plan: PlanTable | None) -> tuple[ClusterStatus, ...]:
    cluster = np.asarray(fleet.cluster)
    rows = _last_rows(fleet.devices, plan)
    # Every cluster gets the same share of the list, or a large one would hide the others.
    quota = MOST_DEVICES if fleet.devices <= MOST_DEVICES else max(1, MOST_DEVICES // fleet.clusters)
    return tuple(
        _cluster_status(number, np.flatnonzero(cluster == number), rows, plan, quota)
        for number in range(fleet.clusters)
    )


def _last_rows(devices: int, plan: PlanTable | None) -> IntArray:
    """Every device's row in the last edge round, or -1 if it did not take part."""
    rows = np.full(devices, -1)
    if plan is not None and len(plan.device):
        last = np.flatnonzero(plan.edge_round == plan.edge_round.max())
        rows[plan.device[last]] = last
    return rows


def _cluster_status(
    number: int, devices: IntArray, rows: IntArray, plan: PlanTable | None, quota: int
) -> ClusterStatus:
    present = rows[devices][rows[devices] >= 0]
    listed = devices
    if plan is not None and len(devices) > quota:
        seconds = np.full(len(devices), -1.0)  # devices that did not take part come last
        seconds[rows[devices] >= 0] = plan.seconds[present]
        listed = np.sort(devices[np.argsort(-seconds, kind="stable")[:quota]])
    return ClusterStatus(
        cluster=number,
        node=f"edge {number}",
        size=len(devices),
        devices=tuple(_device_status(int(each), int(rows[each]), plan) for each in listed[:quota]),
        rho_mean=_mean(plan.rho[present]) if plan is not None else None,
        theta_mean=_mean(plan.theta[present]) if plan is not None else None,
    )


def _device_status(number: int, row: int, plan: PlanTable | None) -> DeviceStatus:
    name = f"device {number}"
    if plan is None:
        return DeviceStatus(device=number, name=name, state="idle")
    if row < 0:
        return DeviceStatus(device=number, name=name, state="absent")
    return DeviceStatus(
        device=number,
        name=name,
        state="done",
        rho=_share(plan.rho[row]),
        theta=_share(plan.theta[row]),
        mu=_finite(plan.mu[row]),
        nu=_finite(plan.nu[row]),
        seconds=_finite(plan.seconds[row]),
        joules=_finite(plan.joules[row]),
    )


def _mean(values: FloatArray) -> float | None:
    return _share(values.mean()) if len(values) else None


def _share(value: float) -> float:
    """A plan's ρ or θ; rounding may put it slightly above 1."""
    return min(1.0, float(value))


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
