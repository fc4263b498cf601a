"""`make fuzz`: makes cases until its time is up, and prints what was not refused by name.

python -m tests.fuzz --seconds 60            bounded, as in CI
python -m tests.fuzz --seconds 0             until Ctrl-C
python -m tests.fuzz --seed 7 --cases 1      one case again
"""

import argparse
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from types import FrameType

from tests.fuzz import directories

CASE_SECONDS = 30
MAX_BYTES = 1024**3
"""Memory that a case may take, more than all before it."""


def main() -> int:
    """The exit code: 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seconds", type=float, default=60.0, help="0: until Ctrl-C")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**9)
    parser.add_argument("--cases", type=int, default=sys.maxsize)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="write what is found there, for the corpus")
    arguments = parser.parse_args()
    signal.signal(signal.SIGALRM, _stop)
    with tempfile.TemporaryDirectory() as place:
        return 1 if _fuzz(arguments, Path(place)) else 0


def _fuzz(arguments: argparse.Namespace, place: Path) -> int:
    """How many different findings there were."""
    run, begin = directories.make_run(place / "run"), time.monotonic()
    found: set[tuple[str, ...]] = set()
    seed = arguments.seed
    try:
        while seed < arguments.seed + arguments.cases:
            if arguments.seconds and time.monotonic() - begin > arguments.seconds:
                break
            draw = random.Random(seed)  # noqa: S311 — to be drawn again, not to be secret
            case = directories.make_case(draw, run)
            trace = _try(run, place / "case", case, draw.random() < directories.FIGURES)
            if trace is not None and tuple(trace.splitlines()[-3:]) not in found:
                found.add(tuple(trace.splitlines()[-3:]))
                sys.stdout.write(f"seed {seed}, {', '.join(case)}:\n{trace}\n")
                _keep(arguments.keep, seed, case)
            seed += 1
    except KeyboardInterrupt:
        sys.stdout.write("\n")
    cases = seed - arguments.seed
    sys.stdout.write(f"{cases} cases from seed {arguments.seed}, {len(found)} findings\n")
    return len(found)


def _try(run: Path, place: Path, case: directories.Case, figures: bool) -> str | None:
    """What went wrong in a case, as text."""
    before = _peak_bytes()
    signal.alarm(CASE_SECONDS)
    try:
        directories.try_case(run, place, case, figures=figures)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 — whatever it is, it is a finding
        return traceback.format_exc()
    finally:
        signal.alarm(0)
    after = _peak_bytes()
    return f"{after - before:,} bytes of memory" if after > before + MAX_BYTES else None


def _peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _stop(_signal: int, _frame: FrameType | None) -> None:
    raise TimeoutError(f"longer than {CASE_SECONDS} s")


def _keep(place: Path | None, seed: int, case: directories.Case) -> None:
    if place is None:
        return
    place.mkdir(parents=True, exist_ok=True)
    (place / f"{seed}.json").write_text(directories.dump_case(case))


if __name__ == "__main__":
    sys.exit(main())
