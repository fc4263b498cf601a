"""A simulation with its run directory: creates or resumes it, appends every round, saves checkpoints.

The rounds themselves are in `loop`; what a directory looks like is up to `runlog`.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from cfel.durable import translate_parse_errors
from cfel.errors import DivergedError, RunDirectoryError
from cfel.rounds.kernel import is_over
from cfel.rounds.parameters import SimulationParameters
from cfel.rounds.run_directory import open_run
from cfel.runlog import RoundRecord, RunDirectory, RunWriter, holds_run
from cfel.simulation.executors import Executor
from cfel.simulation.loop import simulate
from cfel.simulation.state import RunState, from_checkpoint, initial_state, to_checkpoint
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
    parameters: SimulationParameters,
    path: Path,
    *,
    experiment_toml: str,
    command: list[str],
    resume: bool = False,
    watch: Watch | None = None,
) -> list[RoundRecord]:
    """Runs an experiment to its end and leaves the run directory complete.

    Args:
        world: what is run.
        executor: where devices' work is done.
        parameters: of the simulation.
        path: the run directory.
        experiment_toml: the experiment, resolved.
        command: the command line, for the record.
        resume: resume the run that `path` holds, if it holds one.
        watch: hooks.

    Returns:
        The records of all rounds, those before a resume included.

    Raises:
        RunDirectoryError: `path` holds a run and `resume` is not set, or it holds one of another experiment;
            or a file cannot be written.
        DivergedError: training diverged; the checkpoint is of the last round in the log.
        KeyboardInterrupt: the run was interrupted; the checkpoint is of the last round in the log.
    """
    if resume and holds_run(path):
        _reject_deployment(path)
    writer, checkpoint = open_run(
        path, world.setting, experiment_toml=experiment_toml, command=command, resume=resume
    )
    with writer:
        if checkpoint is None:
            state = initial_state(world)
        else:
            with translate_parse_errors(path / "checkpoint"):
                state = from_checkpoint(checkpoint, world)
        _run_rounds(world, executor, parameters, state, writer, watch or Watch())
    return list(RunDirectory.open(path).records())


def _run_rounds(
    world: World,
    executor: Executor,
    parameters: SimulationParameters,
    state: RunState,
    writer: RunWriter,
    watch: Watch,
) -> None:
    """Runs the rounds that are left, each written before the next begins; the last good one is saved."""
    done = RunDirectory.open(writer.path).records()
    with watch.follow() as progress:
        # A finished run is followed, too: a tracker may be new to it.
        if done and is_over(world.setting.rounds, world.setting.budget, done[-1]):
            return
        last_saved, stopped = state.control.rounds_done, False
        diverged: DivergedError | None = None
        try:
            for outcome in simulate(world, executor, parameters, state, time.perf_counter):
                writer.append(outcome.record, outcome.plans)
                state, number = outcome.state, outcome.record.round
                over = is_over(world.setting.rounds, world.setting.budget, outcome.record)
                stopped = watch.interrupted() and not over
                if stopped or (parameters.checkpoint_every and number % parameters.checkpoint_every == 0):
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
