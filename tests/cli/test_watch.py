"""`cfel watch`: serves until Ctrl-C, and rejects what it must."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.cli.conftest import Run

WITHOUT_TOKEN = {name: value for name, value in os.environ.items() if name != "CFEL_DASHBOARD_TOKEN"}
# A process begun in the background of a shell ignores Ctrl-C, and so would its children.
HEED = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"


def test_it_serves_until_interrupted(tmp_path: Path) -> None:
    code = f"{HEED}; import sys; from cfel.cli import main; sys.exit(main(['watch', {str(tmp_path)!r}]))"
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=WITHOUT_TOKEN,
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().removeprefix("dashboard: ").strip()
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(f"{address}status.json", timeout=30) as answer:  # noqa: S310 — its own
            document = json.load(answer)
        assert (document["phase"], document["node"]) == ("waiting", tmp_path.name)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait(30)
    assert (process.returncode, errors) == (0, "")


def test_it_rejects(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CFEL_DASHBOARD_TOKEN", raising=False)
    answer = run("watch", tmp_path / "none")
    assert (answer.code, answer.out) == (1, "")
    assert "none is not a directory" in answer.err
    answer = run("watch", tmp_path, "--host", "0.0.0.0")  # noqa: S104 — rejected
    assert (answer.code, answer.out) == (2, "")
    assert "needs a token" in answer.err
    monkeypatch.setenv("CFEL_DASHBOARD_TOKEN", "short")
    answer = run("watch", tmp_path)
    assert answer.code == 2
    assert "dashboard token: 5 characters, needs 16 or more" in answer.err
    assert run("watch", tmp_path, "--every", 0).code == 2
