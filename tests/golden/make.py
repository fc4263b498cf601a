"""Golden values: what cfel computes the same way on every machine, as `tests/golden/values/*.json` holds it.

    python -m tests.golden.make             # writes all files again
    python -m tests.golden.make plans runs  # only these

Run it only when a change of plans, costs, ledgers, draws or bytes is intended, and look at `git diff` before
committing: each line is one case. `test_golden.py` compares. Models are no golden values, as the order of
float sums differs between processors: `compare_commits` compares those of two commits on one machine.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.golden.collect import COLLECTORS, Cases

VALUES = Path(__file__).parent / "values"


def write_values(name: str, cases: Cases) -> None:
    """Writes a file, one case per line, floats in full."""
    lines = [f"{json.dumps(case)}: {json.dumps(found)}" for case, found in cases.items()]
    (VALUES / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def read_values(name: str) -> Cases:
    """The cases of a file."""
    found: Cases = json.loads((VALUES / f"{name}.json").read_text(encoding="utf-8"))
    return found


def main(names: Sequence[str]) -> None:
    """Writes the files with these names, or all."""
    for name in names or COLLECTORS:
        write_values(name, COLLECTORS[name]())


if __name__ == "__main__":
    main(sys.argv[1:])
