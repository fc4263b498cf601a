"""How a node ends: its exit code, and the last line of its log."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from cfel.errors import NotAdmittedError
from tests.cli.conftest import Run

NODE = """
role = "edge"
number = 0
experiment = "experiment.toml"
certificates = "certificates"
directory = "state"
addresses = ["127.0.0.1:7400"]
"""


@pytest.fixture
def _quiet() -> Iterator[None]:
    """Gives the log back to the tests."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)


@pytest.mark.usefixtures("_quiet")
@pytest.mark.parametrize(
    ("outcome", "code", "words"),
    [
        (NotAdmittedError("edge-0 is revoked"), 3, "ends: edge-0 is revoked"),
        (ZeroDivisionError("by zero"), 1, "ends with an error that was not expected"),
        (False, 130, "stopped"),
    ],
)
def test_a_log_of_json_has_no_other_lines(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    outcome: Exception | bool,
    code: int,
    words: str,
) -> None:
    def end(_: Path) -> bool:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr("cfel.cli.node.run_node", end)
    (tmp_path / "experiment.toml").touch()
    (tmp_path / "node.toml").write_text(NODE)
    answer = run("edge", "--config", tmp_path / "node.toml", "--log-format", "json")
    assert answer.code == code
    lines = [json.loads(line) for line in answer.err.splitlines()]
    assert lines[-1]["message"] == words
    assert answer.out == ""
