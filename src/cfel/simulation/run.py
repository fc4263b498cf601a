"""A simulation with its run directory: creates or resumes it, appends every round, saves checkpoints.

The rounds themselves are in `loop`; what a directory looks like is up to `runlog`.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from cfel.durable import translate_parse_errors
from cfel.errors import DivergedError, RunDirectoryError
from cfel.rounds.kernel import is_over
from cfel.rounds.run_directory import RunRequest, open_run
from cfel.runlog import RoundRecord, RunDirectory, RunWriter, holds_run
from cfel.simulation.executors import Executor
from cfel.simulation.loop import simulate
from cfel.simulation.state import RoundOutcome, RunState, from_checkpoint, initial_state, to_checkpoint
from cfel.wording import plural
from cfel.world import World

Progress = Callable[[RoundRecord], None]
"""Called with every finished round."""


@dataclass(frozen=True, slots=True)
class Watch:
    """Hooks into a run.

    Attributes:
        follow: entered once the directory is known to be this run's, and left at its end; gives what to call
            with every round once it is written.
        interrupted: called after every round; true ends the run there, with a checkpoint.
    """

    follow: Callable[[], AbstractContextManager[Progress]] = lambda: nullcontext(lambda _: None)
    interrupted: Callable[[], bool] = lambda: False


def run_in_directory(
    world: World,
    executor: Executor,
    request: RunRequest,
    checkpoint_every: int = 1,
    watch: Watch | None = None,
) -> list[RoundRecord]:
    """Runs an experiment to its end and leaves the run directory complete.

    Args:
        world: what is run.
        executor: where devices' work is done.
        request: where, and whether to resume.
        checkpoint_every: global rounds between checkpoints; 0 for none but the last.
        watch: hooks.

    Returns:
        The records of all rounds, those before a resume included.

    Raises:
        RunDirectoryError: the run cannot start or be resumed there, or a file cannot be written.
        DivergedError: training diverged; the checkpoint is of the last round in the log.
        KeyboardInterrupt: the run was interrupted; the checkpoint is of the last round in the log.
    """
    if request.resume and holds_run(request.path):
        _reject_deployment(request.path)
    writer, checkpoint = open_run(request, world.setting)
    with writer:
        if checkpoint is None:
            state = initial_state(world)
        else:
            with translate_parse_errors(request.path / "checkpoint"):
                state = from_checkpoint(checkpoint, world)
        outcomes = simulate(world, executor, state, time.perf_counter)
        _write_rounds(world, state, outcomes, writer, checkpoint_every, watch or Watch())
    return list(RunDirectory.open(request.path).records())


def _write_rounds(
    world: World,
    state: RunState,
    outcomes: Iterator[RoundOutcome],
    writer: RunWriter,
    checkpoint_every: int,
    watch: Watch,
) -> None:
    """Runs the rounds that are left, each written before the next begins; the last good one is saved."""
    done = RunDirectory.open(writer.path).records()
    with watch.follow() as progress:
        # A finished run is followed, too: a tracker may be new to it.
        if done and _ends(world, done[-1]):
            return
        last_saved, stopped = state.control.rounds_done, False
        diverged: DivergedError | None = None
        try:
            for outcome in outcomes:
                writer.append(outcome.record, outcome.plans)
                state, number = outcome.state, outcome.record.round
                stopped = watch.interrupted() and not _ends(world, outcome.record)
                if stopped or (checkpoint_every and number % checkpoint_every == 0):
                    writer.save_checkpoint(to_checkpoint(state))
                    last_saved = number
                progress(outcome.record)
                if stopped:
                    break
        except DivergedError as error:
            diverged = error
        if last_saved < state.control.rounds_done:
            writer.save_checkpoint(to_checkpoint(state))
        writer.wait()
        if diverged is not None:
            raise diverged.add_details(advice=_advice(writer.path, state.control.rounds_done)) from diverged
        if stopped:
            raise KeyboardInterrupt


def _ends(world: World, record: RoundRecord) -> bool:
    setting = world.at(record.round).setting
    return is_over(setting.rounds, setting.budget, setting.metrics[0], record)


def _advice(path: Path, good_rounds: int) -> str:
    """What can be done with the directory of a run that diverged."""
    smaller = "with a smaller --set local.learning_rate=… and another --out"
    if not good_rounds:
        return f". No round was finished: run it again {smaller}"
    kept = plural(good_rounds, "round")
    return (
        f". {kept} and a checkpoint are kept in {path}; --resume would only meet the same again. Run it "
        f"again {smaller}; to start from the last good model, `cfel export {path} --to good.safetensors` and "
        "--set model.init=good.safetensors"
    )


def _reject_deployment(path: Path) -> None:
    """Raises if the run is a federation's, or one of its edge servers': resuming it would cut its log."""
    if (path / "nodes").is_dir() or (path / "vote.json").exists():
        raise RunDirectoryError(
            f"{path} holds a deployment's run, whose devices keep their own state: "
            "resume it with `cfel up --resume`, or start its nodes again"
        )
