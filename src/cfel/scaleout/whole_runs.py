"""Whole runs on a Ray cluster: each is a job for one core, in its own run directory.

The machine that executes a run and this machine must both see the run's directory: this one reads the log to
report progress. So every machine is tested first, and those that do not see a file written here are not used.
A run whose machine is lost resumes on another one from its last checkpoint; it needs only the directory.
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
from cfel.scaleout.workers import (
    START_SECONDS,
    VERSIONS,
    WORKER_LOST,
    extend_search_path,
    list_live_nodes,
    unwrap_error,
)

POLL_SECONDS = 0.5
MOST_ATTEMPTS = 5
# Network file systems may take seconds to show a new file.
SHARED_FILE_SECONDS = 5.0

RunFunction = Callable[[str, str, bool, str], bool]
"""(experiment's text, run directory, resume?, stop file) → whether the run finished; False if it stopped."""


@dataclass(eq=False, slots=True)
class ClusterRun:
    """A run to execute."""

    name: str  # for messages
    text: str  # the experiment, as the run function expects it
    directory: Path  # the run directory
    resume: bool = False  # continue the run in that directory
    attempts: int = 0  # how often it was started


@dataclass(eq=False, slots=True)
class ClusterRuns:
    """Distributes runs over the machines of a cluster; `folder` holds all run directories."""

    function: RunFunction
    folder: Path
    # Called twice a second for each run in progress, and once when it ends.
    on_poll: Callable[[ClusterRun], None]
    # When it returns True, runs in progress stop after their round and no other starts.
    interrupted: Callable[[], bool]
    notify: Callable[[str], None]  # receives a message about machines that are unusable or lost
    _free_cores: dict[str, int] = field(default_factory=dict)
    _in_progress: dict[Any, tuple[str, ClusterRun]] = field(default_factory=dict)
    _unusable: set[str] = field(default_factory=set)

    def execute(self, runs: Sequence[ClusterRun]) -> bool:
        """Executes all runs; returns whether all finished, which they do unless interrupted.

        Raises:
            CfelError: a run failed with it; the others have stopped after their round, with a checkpoint.
            ScaleoutError: no machine sees the folder, or a run's machine was lost repeatedly.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        # Runs are processes on other machines: a file on the shared storage is how they learn to stop.
        stop_file = self.folder / f".stop-{uuid4().hex}"
        try:
            return self._execute(deque(runs), stop_file)
        except BaseException:
            self._stop_all(stop_file)
            raise
        finally:
            stop_file.unlink(missing_ok=True)

    def _execute(self, waiting: deque[ClusterRun], stop_file: Path) -> bool:
        all_finished = True
        while waiting or self._in_progress:
            if self.interrupted():
                stop_file.touch()
                all_finished = all_finished and not waiting
                waiting.clear()
            self._update_machines()
            self._start_runs(waiting, stop_file)
            running = list(self._in_progress)
            done, _ = ray.wait(running, timeout=POLL_SECONDS) if running else ([], [])
            for reference in done:
                all_finished = self._finish_run(reference, waiting) and all_finished
            for _, run in self._in_progress.values():
                self.on_poll(run)
        return all_finished

    def _update_machines(self) -> None:
        """Adds machines that have joined and are usable; removes those that are gone."""
        nodes = {str(node["NodeID"]): node for node in list_live_nodes()}
        for name in self._free_cores.keys() - nodes.keys():
            self.notify(f"machine {name[:8]} is lost; its runs resume elsewhere")
            del self._free_cores[name]
        new = nodes.keys() - self._free_cores.keys() - self._unusable
        for name in self._find_usable(new) if new else ():
            self._free_cores[name] = int(nodes[name]["Resources"].get("CPU", 0))
        for name in sorted(new - self._free_cores.keys()):
            self._unusable.add(name)
            self.notify(f"machine {name[:8]} does not see {self.folder}, or runs other versions: not used")
        if not self._free_cores:
            raise ScaleoutError(f"no machine of the cluster sees {self.folder}: put it on shared storage")

    def _find_usable(self, names: set[str]) -> list[str]:
        """The machines that see a file written here and have this process's versions."""
        token = self.folder / f".seen-{uuid4().hex}"
        token.touch()
        try:
            asked = {_on_node(name, _read_versions, 0).remote(str(token)): name for name in names}
            done, _ = ray.wait(list(asked), num_returns=len(asked), timeout=START_SECONDS)
            return [asked[each] for each in done if _get_versions(each) == VERSIONS]
        finally:
            token.unlink()

    def _start_runs(self, waiting: deque[ClusterRun], stop_file: Path) -> None:
        """Starts runs on machines with a free core, on the one with the most first."""
        while waiting and max(self._free_cores.values(), default=0) > 0:
            name = max(self._free_cores, key=lambda name: self._free_cores[name])
            run = waiting.popleft()
            run.attempts += 1
            arguments = (sys.path, self.function, run.text, str(run.directory), run.resume, str(stop_file))
            self._in_progress[_on_node(name, _call_run_function, 1).remote(*arguments)] = (name, run)
            self._free_cores[name] -= 1

    def _finish_run(self, reference: Any, waiting: deque[ClusterRun]) -> bool:  # noqa: ANN401 — Ray's reference
        """Takes the result of a run, or queues it again if it was lost; returns False if it was stopped."""
        name, run = self._in_progress.pop(reference)
        if name in self._free_cores:
            self._free_cores[name] += 1
        try:
            finished = bool(ray.get(reference))
        except RayTaskError as error:
            raise unwrap_error(error) from error
        except (*WORKER_LOST, TaskUnschedulableError) as error:
            if run.attempts >= MOST_ATTEMPTS:
                raise ScaleoutError(
                    f"{run.name}: lost {run.attempts} times with the machine or process that ran it; "
                    f"its checkpoint is in {run.directory}"
                ) from error
            self.notify(f"{run.name}: lost with its worker; resumes from its last checkpoint")
            run.resume = True
            waiting.appendleft(run)
            return True
        self.on_poll(run)
        return finished

    def _stop_all(self, stop_file: Path) -> None:
        """Asks the runs in progress to stop after their round, and waits for them."""
        if self._in_progress and ray.is_initialized():
            stop_file.touch()
            ray.wait(list(self._in_progress), num_returns=len(self._in_progress), timeout=START_SECONDS)


def _on_node(node: str, function: Callable[..., Any], cores: int) -> Any:  # noqa: ANN401 — a remote function
    there = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
    return ray.remote(function).options(num_cpus=cores, max_retries=0, scheduling_strategy=there)


def _get_versions(reference: Any) -> tuple[str, ...]:  # noqa: ANN401 — Ray's reference
    try:
        return tuple(ray.get(reference))
    except (*WORKER_LOST, TaskUnschedulableError):
        return ()


def _read_versions(token: str) -> tuple[str, ...]:
    """The versions of the process that runs this, if it sees the file; nothing otherwise."""
    deadline = time.monotonic() + SHARED_FILE_SECONDS
    while not Path(token).exists():
        if time.monotonic() > deadline:
            return ()
        time.sleep(0.1)
    return VERSIONS


def _call_run_function(
    search_path: Sequence[str], function: RunFunction, text: str, directory: str, resume: bool, stop_file: str
) -> bool:
    """Executes a run, in a process on some machine of the cluster."""
    extend_search_path(search_path)
    return function(text, directory, resume, stop_file)
