"""`make fuzz`: makes cases until its time is up, and prints what was not rejected by name.

python -m tests.fuzz --seconds 60            bounded, as in CI
python -m tests.fuzz --seconds 0             until Ctrl-C
python -m tests.fuzz --seed 7 --rounds 1     one round again
"""

import argparse
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType

from tests.fuzz import directories, tables, wire

CASE_SECONDS = 120
MAX_BYTES = 1024**3
"""Memory that a case may take, more than all before it."""

MESSAGES = 200
"""Messages per run directory: trying one takes a few microseconds."""


def main() -> int:
    """The exit code: 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seconds", type=float, default=60.0, help="0: until Ctrl-C")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**9)
    parser.add_argument("--rounds", type=int, default=sys.maxsize)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep what is found there, for the corpus")
    arguments = parser.parse_args()
    signal.signal(signal.SIGALRM, _stop)
    with tempfile.TemporaryDirectory() as place:
        return 1 if _fuzz(arguments, Path(place)) else 0


def _fuzz(arguments: argparse.Namespace, place: Path) -> int:
    """How many different findings there were."""
    run, begin, seed = directories.make_run(place / "run"), time.monotonic(), arguments.seed
    found: set[tuple[str, ...]] = set()

    def report(name: str, trace: str | None) -> bool:
        """Whether it is new."""
        # Which line it was and which error; what the error says differs from case to case.
        lines = [line for line in (trace or "").splitlines() if line.startswith("  File")]
        key = (*lines[-2:], (trace or "").splitlines()[-1].partition(":")[0]) if trace else ()
        if trace is None or key in found:
            return False
        found.add(key)
        sys.stdout.write(f"{name}:\n" + "".join(f"{line[:300]}\n" for line in trace.splitlines()))
        return True

    try:
        while seed < arguments.seed + arguments.rounds:
            if arguments.seconds and time.monotonic() - begin > arguments.seconds:
                break
            draw = random.Random(seed)  # noqa: S311 — to be drawn again, not to be secret
            case = directories.make_case(draw, run)
            figures = draw.random() < directories.FIGURES
            work = partial(directories.try_case, run, place / "case", case, figures=figures)
            if report(f"seed {seed}, {', '.join(case)}", _try(work)) and arguments.keep is not None:
                arguments.keep.mkdir(parents=True, exist_ok=True)
                (arguments.keep / f"{seed}.json").write_text(directories.dump_case(case))
            name, content = tables.make_case(draw)
            report(f"seed {seed}, {name}", _try(partial(tables.try_case, place / "tables", name, content)))
            for number in range(MESSAGES):
                message = random.Random(f"{seed}-{number}")  # noqa: S311
                report(f"message {seed}-{number}", _try(partial(wire.try_case, message)))
            seed += 1
    except KeyboardInterrupt:
        sys.stdout.write("\n")
    count = seed - arguments.seed
    summary = f"{count} run directories and tables, {count * MESSAGES} messages from seed {arguments.seed}"
    sys.stdout.write(f"{summary}: {len(found)} findings\n")
    return len(found)


def _try(work: Callable[[], None]) -> str | None:
    """What went wrong, as text."""
    before = _peak_bytes()
    signal.alarm(CASE_SECONDS)
    try:
        work()
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 — whatever it is, it is a finding
        return traceback.format_exc()
    finally:
        signal.alarm(0)
    taken = _peak_bytes() - before
    return f"{taken:,} bytes of memory" if taken > MAX_BYTES else None


def _peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _stop(_signal: int, _frame: FrameType | None) -> None:
    raise TimeoutError(f"longer than {CASE_SECONDS} s")


if __name__ == "__main__":
    sys.exit(main())
