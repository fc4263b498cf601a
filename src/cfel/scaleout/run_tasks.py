"""Whole runs as tasks on a cluster: one core each, every run in its own directory.

A run's directory must be seen by the machine that does it, and by this one, which reads its log to tell how
far it has come. So machines are asked first: those that do not see a file written here are left out. A run
whose machine is lost goes on elsewhere from its last checkpoint; the directory is all that is needed for it.
"""

import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import ray
from ray.exceptions import RayTaskError, TaskUnschedulableError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cfel.errors import ScaleoutError
from cfel.scaleout.cluster import living_nodes
from cfel.scaleout.roster import LOST, START_SECONDS, cause_of
from cfel.scaleout.worker import VERSIONS

LOOK_SECONDS = 0.5
MOST_ATTEMPTS = 5

Work = Callable[[str, str, bool, str], bool]
"""(experiment's text, run directory, resume?, file that asks it to stop) → whether it came to its end."""


@dataclass(eq=False, slots=True)
class Run:
    """A run to be done.

    Attributes:
        name: for whoever looks on.
        text: the experiment, as the work understands it.
        directory: of the run.
        resume: go on with what the directory holds.
        attempts: how often it was begun.
    """

    name: str
    text: str
    directory: Path
    resume: bool = False
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class Looking:
    """Who looks on while runs go on.

    Attributes:
        looked: called twice a second for every run under way.
        interrupted: true ends the runs under way after their round, and begins no other.
        say: told of machines that cannot be used, and of those that are lost.
    """

    looked: Callable[[Run], None] = lambda _: None
    interrupted: Callable[[], bool] = lambda: False
    say: Callable[[str], None] = lambda _: None


@dataclass(eq=False, slots=True)
class Sweep:
    """Runs that are shared out over a cluster.

    Args:
        work: what does a run, in another process.
        folder: holds all run directories.
        looking: who looks on.
    """

    work: Work
    folder: Path
    looking: Looking
    _free: dict[str, int] = field(default_factory=dict)
    _under_way: dict[Any, tuple[str, Run]] = field(default_factory=dict)
    _unseen: set[str] = field(default_factory=set)

    def do(self, runs: Sequence[Run]) -> bool:
        """Does all runs; says whether all came to their end, which they do unless interrupted.

        Raises:
            CfelError: what a run failed with; the others have stopped after their round, with a checkpoint.
            ScaleoutError: no machine sees the folder, or a run's machine was lost again and again.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        stop = self.folder / f".stop-{uuid4().hex}"
        waiting = deque(runs)
        try:
            return self._do(waiting, stop)
        except BaseException:
            self._stop(stop)
            raise
        finally:
            stop.unlink(missing_ok=True)

    def _do(self, waiting: deque[Run], stop: Path) -> bool:
        whole = True
        while waiting or self._under_way:
            if self.looking.interrupted():
                stop.touch()
                whole = whole and not waiting
                waiting.clear()
            self._meet_nodes()
            self._begin(waiting, stop)
            done, _ = ray.wait(list(self._under_way), timeout=LOOK_SECONDS) if self._under_way else ([], [])
            for reference in done:
                whole = self._end(reference, waiting) and whole
            for _, run in self._under_way.values():
                self.looking.looked(run)
        return whole

    def _meet_nodes(self) -> None:
        """Takes in machines that have joined and see the folder; forgets those that are gone."""
        nodes = {str(node["NodeID"]): node for node in living_nodes()}
        for name in self._free.keys() - nodes.keys():
            self.looking.say(f"machine {name[:8]} is lost; its runs go on elsewhere")
            del self._free[name]
        new = nodes.keys() - self._free.keys() - self._unseen
        for name in self._seeing(new) if new else ():
            self._free[name] = int(nodes[name]["Resources"].get("CPU", 0))
        for name in sorted(new - self._free.keys()):
            self._unseen.add(name)
            self.looking.say(
                f"machine {name[:8]} does not see {self.folder}, or runs other versions: not used"
            )
        if not self._free:
            raise ScaleoutError(f"no machine of the cluster sees {self.folder}: put it on shared storage")

    def _seeing(self, names: set[str]) -> list[str]:
        """Those machines that see a file written here, and run what runs here."""
        token = self.folder / f".seen-{uuid4().hex}"
        token.touch()
        try:
            asked = {_at(name, _versions_where_seen, 0).remote(str(token)): name for name in names}
            done, _ = ray.wait(list(asked), num_returns=len(asked), timeout=START_SECONDS)
            return [asked[each] for each in done if _answer(each) == VERSIONS]
        finally:
            token.unlink()

    def _begin(self, waiting: deque[Run], stop: Path) -> None:
        """Hands runs to machines with a free core, the emptiest first."""
        while waiting and max(self._free.values(), default=0) > 0:
            name = max(self._free, key=lambda name: self._free[name])
            run = waiting.popleft()
            run.attempts += 1
            arguments = (sys.path, self.work, run.text, str(run.directory), run.resume, str(stop))
            self._under_way[_at(name, _do_run, 1).remote(*arguments)] = (name, run)
            self._free[name] -= 1

    def _end(self, reference: Any, waiting: deque[Run]) -> bool:  # noqa: ANN401 — Ray's reference
        """Takes a finished run in, or puts a lost one back; says whether nothing cut it short."""
        name, run = self._under_way.pop(reference)
        if name in self._free:
            self._free[name] += 1
        try:
            whole = bool(ray.get(reference))
        except RayTaskError as error:
            raise cause_of(error) from error
        except (*LOST, TaskUnschedulableError) as error:
            if run.attempts >= MOST_ATTEMPTS:
                raise ScaleoutError(
                    f"{run.name}: lost {run.attempts} times with the machine or process that did it; "
                    f"its checkpoint is in {run.directory}"
                ) from error
            self.looking.say(f"{run.name}: lost with its worker; goes on from its last checkpoint")
            run.resume = True
            waiting.appendleft(run)
            return True
        self.looking.looked(run)
        return whole

    def _stop(self, stop: Path) -> None:
        """Asks the runs under way to stop after their round, and waits for them."""
        if self._under_way and ray.is_initialized():
            stop.touch()
            ray.wait(list(self._under_way), num_returns=len(self._under_way), timeout=START_SECONDS)


def _at(node: str, function: Callable[..., Any], cores: int) -> Any:  # noqa: ANN401 — Ray's remote function
    there = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
    return ray.remote(function).options(num_cpus=cores, max_retries=0, scheduling_strategy=there)


def _answer(reference: Any) -> tuple[str, ...]:  # noqa: ANN401 — Ray's reference
    try:
        return tuple(ray.get(reference))
    except (*LOST, TaskUnschedulableError):
        return ()


def _versions_where_seen(token: str) -> tuple[str, ...]:
    """This process's versions, if it sees the file; nothing otherwise."""
    deadline = time.monotonic() + 5  # network file systems may take seconds to show a new file
    while not Path(token).exists():
        if time.monotonic() > deadline:
            return ()
        time.sleep(0.1)
    return VERSIONS


def _do_run(
    search_path: Sequence[str], work: Work, text: str, directory: str, resume: bool, stop: str
) -> bool:
    """A run, in a process of its own."""
    sys.path.extend(place for place in search_path if place not in sys.path)
    return work(text, directory, resume, stop)
