"""Plays seeded schedules of faults with whole federations, and checks what must be true of each.

    python -m tests.whole_federation --seed 4711                 one schedule, told in full
    python -m tests.whole_federation --seed 0 --seeds 1000       many; stops at the first violation
    python -m tests.whole_federation --seeds 1000 --bug NAME     with a planted bug, which must be found

The same seed gives the same history on the same commit.
"""

import argparse
import sys
import time
from dataclasses import replace

from tests.whole_federation.bugs import BUGS, plant
from tests.whole_federation.federation import play
from tests.whole_federation.history import find_violations, nothing_was_lost
from tests.whole_federation.schedule import draw_schedule

EVERY = 100
"""How many schedules between two lines that say how far it is, and where to resume."""


def main() -> int:
    """Returns 1 if there was a violation."""
    parser = argparse.ArgumentParser(prog="python -m tests.whole_federation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument("--bug", choices=sorted(BUGS), help="a bug to plant")
    parser.add_argument("--large", action="store_true", help="plan by asking edge servers")
    parser.add_argument("--all", action="store_true", help="do not stop at the first violation")
    options = parser.parse_args()
    began, violated, equal, virtual_seconds = time.process_time(), 0, 0, 0.0
    for seed in range(options.seed, options.seed + options.seeds):
        schedule = replace(draw_schedule(seed), is_large=options.large)
        with plant(options.bug):
            history = play(schedule)
        found = find_violations(history)
        virtual_seconds += history.virtual_seconds
        if found or options.seeds == 1:
            _say(str(schedule), *(f"  {words}" for words in history.failures))
        if found:
            violated += 1
            _say(*(f"VIOLATED {words}" for words in found))
            if not options.all:
                break
        equal += schedule.loses_nothing or nothing_was_lost(history)
        if (played := seed - options.seed + 1) % EVERY == 0 and played < options.seeds:
            _say(f"{played} schedules played, {violated} with violations; next: --seed {seed + 1}")
    seconds = time.process_time() - began
    _say(
        f"{seed - options.seed + 1} schedules from seed {options.seed}, {violated} with violations, "
        f"{equal} without any loss, {virtual_seconds / 3600:.1f} h of federation in {seconds:.0f} s of CPU"
    )
    return 1 if violated else 0


def _say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
