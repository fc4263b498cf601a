"""Compares what two commits of cfel compute on this machine: models bit for bit, accounts, plans.

    nice python -m tests.golden.compare_commits OLD NEW
    nice python -m tests.golden.compare_commits OLD . --only hcef --ignore wire_bytes --except "edge fedadam"
    nice python -m tests.golden.compare_commits OLD . --baseline build/golden

OLD and NEW are commits, or directories with a working tree: `.` compares what is not committed yet. Both run
the experiments of `matrix` through `cfel run`, in one process each; runs that OLD began are also resumed by
NEW. With `--baseline`, the runs of OLD are kept for the next time. Every field of `rounds.jsonl` but time and
memory, every column of the plan tables, and `fleet.json` must be equal. Prints what differs; the exit code is
1 if anything does, or if a run fails.
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.golden.matrix import Case, Changes, list_cases

ROOT = Path(__file__).parents[2]
DRIVER = Path(__file__).with_name("run_cases.py")
MODEL = Path(__file__).with_name("batch_norm.py")
NOT_COMPARED = ("wall_seconds", "peak_memory_bytes")
_MOST_SHOWN = 6
_SMALL: Changes = {"rounds.global": 2, "simulation.workers": 1}
# Any accuracy reaches it, so that a run ends after its first round with a checkpoint, and can be resumed.
_STOP: Changes = {"rounds.stop": "target", "rounds.target": 1e-9}
_GO_ON: Changes = {"rounds.stop": "rounds", "rounds.target": 1e-9}


@dataclass(frozen=True, slots=True)
class Tree:
    """A checked-out commit and where its runs go."""

    name: str
    source: Path
    runs: Path

    def place(self, case: Case) -> Path:
        """The run directory of a case."""
        return self.runs / case.name.replace(" ", "_")


@dataclass(frozen=True, slots=True)
class Job:
    """A command of a tree and the case that it belongs to."""

    case: Case
    words: list[str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Compares and returns the exit code."""
    options = _parse(arguments)
    chosen = [
        case
        for case in list_cases()
        if (options.ray or not case.ray) and all(each in case.name for each in options.only)
    ]
    if strange := set(options.expected) - {case.name for case in list_cases()}:
        raise SystemExit(f"--except: no such case: {', '.join(sorted(strange))}")
    if not chosen:
        raise SystemExit(f"--only: no case has {' and '.join(options.only)} in its name")
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="cfel-compare-") as scratch, ExitStack() as stack:
        home, place = _find_home(options.baseline, options.old, Path(scratch)), Path(scratch)
        old = Tree("old", stack.enter_context(_check_out(options.old, place / "old")), home / "old-runs")
        new = Tree("new", stack.enter_context(_check_out(options.new, place / "new")), place / "new-runs")
        example = home / "tiny.toml"
        # The same file for both, whatever has become of the example.
        shutil.copy(old.source / "examples" / "tiny.toml", example)
        shutil.copy(MODEL, home)
        found = _compare(old, new, example, chosen, set(options.ignore))
    differing = [name for name, lines in found.items() if lines]
    for name in differing:
        mark = "expected" if name in options.expected else "DIFFERS"
        _say("\n".join([f"{name}: {mark}", *(f"    {line}" for line in _shorten(found[name]))]))
    wrong = [name for name in differing if name not in options.expected]
    counts = f"{len(found)} cases, {len(differing)} differ, {len(wrong)} unexpectedly"
    _say(f"{counts}; {time.monotonic() - begun:.0f} s")
    return 1 if wrong else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.golden.compare_commits", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("old", help="commit or directory")
    parser.add_argument("new", help="commit or directory")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="TEXT", help="cases with all these in their names"
    )
    parser.add_argument(
        "--except", nargs="+", default=[], metavar="NAME", dest="expected", help="cases that may differ"
    )
    parser.add_argument(
        "--ignore", nargs="+", default=[], metavar="FIELD", help="fields and columns that may differ"
    )
    parser.add_argument("--ray", action="store_true", help="also the engine ray, which takes longer")
    parser.add_argument("--baseline", type=Path, metavar="DIR", help="keep OLD's runs here, and reuse them")
    return parser.parse_args(arguments)


def _find_home(baseline: Path | None, commit: str, scratch: Path) -> Path:
    """Where OLD's runs go; kept only where a commit's name says what they are of."""
    if baseline is None:
        return scratch
    if Path(commit).is_dir():
        raise SystemExit(f"--baseline: {commit} is a directory, which may change; give a commit")
    home = baseline.resolve() / _git("rev-parse", "--verify", f"{commit}^{{commit}}")
    home.mkdir(parents=True, exist_ok=True)
    return home


@contextmanager
def _check_out(commit: str, place: Path) -> Iterator[Path]:
    """A directory with the commit's files; one that is given is used as it is."""
    if (Path(commit) / "src" / "cfel").is_dir():
        yield Path(commit).resolve()
        return
    _git("worktree", "add", "--quiet", "--detach", str(place), commit)
    try:
        yield place
    finally:
        _git("worktree", "remove", "--force", str(place))


def _git(*words: str) -> str:
    git = shutil.which("git") or "git"
    done = subprocess.run([git, "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.strip()


def _compare(
    old: Tree, new: Tree, example: Path, cases: Sequence[Case], ignored: set[str]
) -> dict[str, list[str]]:
    """What differs in each case; nothing where all is equal."""
    part = Tree("begun", old.source, old.runs.with_name("begun-runs"))
    whole = [Job(case, _run(example, old.place(case), case.changes)) for case in cases]
    begun = [
        Job(case, _run(example, part.place(case), {**case.changes, **_STOP})) for case in cases if case.stop
    ]
    failed = _execute(old, [*whole, *begun])
    for case in (each for each in cases if each.stop and part.place(each).exists()):
        if (rounds := len(_read_rounds(part.place(case)))) != 1:
            failed.setdefault(case.name, []).append(f"begun: {rounds} rounds instead of 1")
        shutil.copytree(part.place(case), new.place(case))
    again = []
    for case in cases:
        changes = {**case.changes, **_GO_ON} if case.stop else case.changes
        again.append(
            Job(case, [*_run(example, new.place(case), changes), *(["--resume"] if case.stop else [])])
        )
    for name, lines in _execute(new, again).items():
        failed.setdefault(name, []).extend(lines)
    return {
        case.name: failed.get(case.name) or list(_compare_runs(old.place(case), new.place(case), ignored))
        for case in cases
    }


def _run(example: Path, out: Path, changes: Changes) -> list[str]:
    words = ["run", str(example), "--out", str(out), "--json"]
    for key, value in {**_SMALL, **changes}.items():
        words += ["--set", f"{key}={_write_toml(value)}"]
    return words


def _write_toml(value: object) -> str:
    if isinstance(value, dict):
        return (
            "{" + ", ".join(f"{json.dumps(key)} = {_write_toml(each)}" for key, each in value.items()) + "}"
        )
    return json.dumps(value)


def _execute(tree: Tree, jobs: Sequence[Job]) -> dict[str, list[str]]:
    """Runs the commands with a tree's package, or knows their results; returns what failed, by case."""
    results = _read_results(tree)
    if not all(tuple(job.words) in results for job in jobs):
        _drive(tree, jobs)
        results = _read_results(tree)
    failed: dict[str, list[str]] = {}
    for job in jobs:
        code, printed = results[tuple(job.words)]
        if code:
            line = f"{tree.name}: exit code {code}: {' '.join(printed.split())[-400:]}"
            failed.setdefault(job.case.name, []).append(line)
    return failed


def _drive(tree: Tree, jobs: Sequence[Job]) -> None:
    commands, done = _name_files(tree)
    done.unlink(missing_ok=True)
    # Runs of a baseline that is not complete would be in the way; those to be resumed must stay.
    for job in (each for each in jobs if "--resume" not in each.words):
        shutil.rmtree(job.words[job.words.index("--out") + 1], ignore_errors=True)
    commands.write_text(json.dumps([job.words for job in jobs]), encoding="utf-8")
    source = tree.source / "src"
    begun = time.monotonic()
    place = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, str(DRIVER), str(source), str(commands)], env=place, cwd=tree.source, check=True
    )
    _say(f"{tree.name}: {len(jobs)} runs in {time.monotonic() - begun:.0f} s")


def _read_results(tree: Tree) -> dict[tuple[str, ...], tuple[object, str]]:
    """Exit code and output of every command that was run."""
    commands, done = _name_files(tree)
    if not done.exists():
        return {}
    pairs = zip(_read_json(commands), _read_json(done), strict=True)
    return {tuple(words): (result["code"], result["printed"]) for words, result in pairs}


def _name_files(tree: Tree) -> tuple[Path, Path]:
    commands = tree.runs.with_suffix(".json")
    return commands, commands.with_suffix(".done.json")


def _compare_runs(old: Path, new: Path, ignored: set[str]) -> Iterator[str]:
    """Lines that say what differs between two run directories."""
    skipped = ignored | set(NOT_COMPARED)
    yield from _compare_values(
        "fleet", _read_json(old / "fleet.json"), _read_json(new / "fleet.json"), skipped
    )
    yield from _compare_values("rounds", _read_rounds(old), _read_rounds(new), skipped)
    names = [sorted(path.name for path in (run / "plans").iterdir()) for run in (old, new)]
    yield from _compare_values("plans", names[0], names[1], skipped)
    for name in sorted(set(names[0]) & set(names[1])):
        one, two = (pq.read_table(run / "plans" / name).to_pydict() for run in (old, new))
        yield from _compare_values(f"plans/{name}", one, two, skipped)


def _compare_values(place: str, old: Any, new: Any, skipped: set[str]) -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*old, *new]):
            if key not in skipped:
                gone = "(nothing)"
                yield from _compare_values(f"{place}.{key}", old.get(key, gone), new.get(key, gone), skipped)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (one, two) in enumerate(zip(old, new, strict=True)):
            yield from _compare_values(f"{place}[{index}]", one, two, skipped)
    elif not (old == new or (_is_nan(old) and _is_nan(new))):
        yield f"{place}: {old!r} → {new!r}"


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _read_rounds(run: Path) -> list[Any]:
    return [json.loads(line) for line in (run / "rounds.jsonl").read_text(encoding="utf-8").splitlines()]


def _shorten(lines: Sequence[str]) -> list[str]:
    # Whether models differ is what one wants to know first.
    ordered = sorted(lines, key=lambda line: "model_sha256" not in line)
    left = len(lines) - _MOST_SHOWN
    return [*ordered[:_MOST_SHOWN], *([f"… and {left} more"] if left > 0 else [])]


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
