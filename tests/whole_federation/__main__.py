"""Plays seeded schedules of faults with whole federations, and checks what must be true of each.

    python -m tests.whole_federation --seed 4711                 one schedule, in full
    python -m tests.whole_federation --seed 0 --seeds 1000       many; stops at the first violation
    python -m tests.whole_federation --seeds 1000 --bug NAME     with a planted bug, which must be found
    python -m tests.whole_federation --seeds 10000 --out FILE    keeps its count in a file: the same command
                                                                 again continues there, on the same commit

The same seed gives the same history on the same commit.
"""

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from tests.whole_federation.bugs import BUGS, plant
from tests.whole_federation.federation import play
from tests.whole_federation.properties import find_violations, nothing_was_lost
from tests.whole_federation.schedule import Schedule, draw_schedule

EVERY = 20
"""How many schedules between two lines, or two writes of the file, that say how far it is."""


@dataclass
class Count:
    """What has been played so far."""

    commit: str
    first_seed: int
    next_seed: int
    violated: list[int] = field(default_factory=list)
    without_loss: int = 0
    virtual_hours: float = 0.0
    cpu_seconds: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.next_seed - self.first_seed} schedules from seed {self.first_seed} "
            f"at commit {self.commit}, {len(self.violated)} with violations, "
            f"{self.without_loss} without any loss, "
            f"{self.virtual_hours:.1f} h of federation in {self.cpu_seconds:.0f} s of CPU"
        )


def main() -> int:
    """Returns 1 if there was a violation."""
    parser = argparse.ArgumentParser(prog="python -m tests.whole_federation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument("--bug", choices=sorted(BUGS), help="a bug to plant")
    parser.add_argument("--large", action="store_true", help="plan by asking edge servers")
    parser.add_argument("--downloads", action="store_true", help="let devices fetch differences")
    parser.add_argument("--all", action="store_true", help="do not stop at the first violation")
    parser.add_argument("--out", type=Path, help="where to keep the count, and to continue from")
    options = parser.parse_args()
    count = _begin(options.out, options.seed)
    end = options.seed + options.seeds
    for seed in range(count.next_seed, end):
        schedule = replace(draw_schedule(seed), is_large=options.large, downloads=options.downloads)
        _play_one(schedule, options.bug, count, in_full=options.seeds == 1)
        if options.out is not None and (seed + 1 == end or seed % EVERY == EVERY - 1 or count.violated):
            options.out.write_text(json.dumps(asdict(count), indent=2) + "\n")
        if count.violated and not options.all:
            break
        if seed % EVERY == EVERY - 1:
            _say(str(count))
    _say(str(count))
    return 1 if count.violated else 0


def _begin(path: Path | None, seed: int) -> Count:
    command = ["git", "describe", "--always", "--dirty"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    commit = found.stdout.strip() or "unknown"
    if path is None or not path.exists():
        return Count(commit, seed, seed)
    count = Count(**json.loads(path.read_text()))
    if (count.commit, count.first_seed) != (commit, seed):
        sys.exit(
            f"{path}: is of commit {count.commit} from seed {count.first_seed}, not {commit} from {seed}"
        )
    return count


def _play_one(schedule: Schedule, bug: str | None, count: Count, *, in_full: bool) -> None:
    began, seed = time.process_time(), schedule.seed
    with plant(bug):
        history = play(schedule)
    violations = find_violations(history)
    if violations or in_full:
        _say(str(schedule), *(f"  {words}" for words in history.failures))
    if violations:
        count.violated.append(seed)
        _say(*(f"VIOLATED {words}" for words in violations))
    count.next_seed = seed + 1
    count.without_loss += schedule.loses_nothing or nothing_was_lost(history)
    count.virtual_hours += history.virtual_seconds / 3600
    count.cpu_seconds += time.process_time() - began


def _say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
