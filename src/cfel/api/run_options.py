"""How runs are executed, whatever the experiment: progress, trackers, interruption, resuming, the cluster."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cfel.experiment import Experiment
from cfel.experiment.tables import to_document
from cfel.rounds.run_directory import flatten
from cfel.runlog import RoundRecord
from cfel.tracking import TrackedRun, Tracker, follow_run

OnRound = Callable[[str, RoundRecord], None]
"""Called after every round, with the name of the run and the round's record."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to execute runs.

    Attributes:
        command: the command line, kept in `environment.json`.
        resume: continue runs that already exist.
        on_round: called after every round.
        interrupted: checked after every round; true ends the run there, with a checkpoint.
        notify: receives one-line messages for the user.
        ray_address: the cluster to use with engine "ray"; None starts one on this machine.
        trackers: what each run is reported to, by name; see `choose_trackers`.
    """

    command: tuple[str, ...] = ()
    resume: bool = False
    on_round: OnRound | None = None
    interrupted: Callable[[], bool] = lambda: False
    notify: Callable[[str], None] = lambda _: None
    ray_address: str | None = None
    trackers: Mapping[str, Tracker] = field(default_factory=dict)

    @contextmanager
    def follow(
        self, experiment: Experiment, directory: Path, name: str
    ) -> Iterator[Callable[[RoundRecord], None]]:
        """Reports one run to the trackers and to `on_round` while a block executes it.

        Gives what to call after each round.
        """
        run = TrackedRun(experiment.name, name, directory, flatten(to_document(experiment)))
        with follow_run(run, self.trackers, self.notify) as track_round:

            def report(record: RoundRecord) -> None:
                track_round(record)
                if self.on_round is not None:
                    self.on_round(name, record)

            yield report
