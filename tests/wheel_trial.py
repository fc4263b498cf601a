"""Tries an installed wheel as a new user would, without torch; `make wheel-test` runs it.

    python tests/wheel_trial.py DIST.whl examples/devices.csv

It must run with the Python of an environment into which only the wheel was installed.
"""

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

HEAVY = ("torch", "pyarrow", "grpc", "matplotlib", "ray", "sklearn")
RUNS = 5


def main(wheel: Path, devices: Path) -> None:
    """Checks the content of the wheel, plans a fleet, and reads the message about a missing extra."""
    names = zipfile.ZipFile(wheel).namelist()
    foreign = [name for name in names if not name.startswith(("cfel/", "cfel-"))]
    assert not foreign, foreign
    found = [name for name in HEAVY if importlib.util.find_spec(name)]
    assert not found, f"installed with cfel, but should be extras: {found}"

    import cfel

    assert "site-packages" in str(cfel.__file__), cfel.__file__
    plan = cfel.plan(str(devices), time_cap=450, energy_cap=300)
    assert plan.feasible, plan.violations
    print(plan)
    message = _read_message()
    print(message)
    assert "pip install 'cfel[learn]'" in message, message
    _check_commands(devices)
    print(f"wheel: {wheel.stat().st_size / 1024:,.0f} KiB, {len(names)} files")
    numpy, package = _time("-c", "import numpy"), _time("-c", "import numpy, cfel")
    plans = _time("-c", "import numpy, cfel; cfel.plan")
    print(f"CPU time of import numpy: {1e3 * numpy:.0f} ms")
    print(f"of cfel beyond it: {1e3 * (package - numpy):.0f} ms")
    print(f"with all that planning needs: {1e3 * (plans - numpy):.0f} ms")
    print(f"CPU time of cfel --help: {1e3 * _time('-m', 'cfel', '--help'):.0f} ms")


def _read_message() -> str:
    import cfel

    try:
        cfel.run("experiment.toml")
    except cfel.MissingExtraError as error:
        return f"MissingExtraError: {error}"
    return "cfel.run worked without torch"


def _check_commands(devices: Path) -> None:
    planned = _call("-m", "cfel", "plan", str(devices), "--time-cap", "450", "--rows", "1")
    assert planned.returncode == 0, planned.stderr
    missing = _call("-m", "cfel", "demo")
    assert missing.returncode == 2, missing
    assert "pip install 'cfel[learn]'" in missing.stderr, missing.stderr


def _call(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)


def _time(*words: str) -> float:
    """CPU seconds, the least of some runs: other work on the machine hardly changes them."""
    times = []
    for _ in range(RUNS):
        begin = _child_seconds()
        _call(*words)
        times.append(_child_seconds() - begin)
    return min(times)


def _child_seconds() -> float:
    times = os.times()
    return times.children_user + times.children_system


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
