"""Runs what the README shows in Python, as a new user would: `make wheel-test-learn`, and a test.

    python tests/readme_trial.py README.md

The current folder must have `examples`. Needs the extras `learn` and `report`.
"""

import re
import sys
from pathlib import Path

BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def main(page: Path) -> None:
    """Plans a fleet, simulates, and saves a figure."""
    names: dict[str, object] = {}
    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        exec(compile(block, str(page), "exec"), names)  # noqa: S102 — the page is ours
    assert names["plan"].feasible  # type: ignore[attr-defined]
    assert names["result"].records  # type: ignore[attr-defined]
    assert Path("accuracy.png").read_bytes().startswith(b"\x89PNG")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
