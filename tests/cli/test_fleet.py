"""`cfel fleet` and `cfel extend`: what an operator hears."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from cfel.cli import federation, main
from cfel.errors import UnreachableError
from cfel.membership import FleetChange


def test_a_command_without_an_answer_can_be_repeated_and_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the ticket of the change, and a command with this ticket asks for the same change."""
    asked: list[FleetChange] = []

    async def hear_nothing(_node: object, change: FleetChange, _seconds: float) -> int:
        asked.append(change)
        raise UnreachableError("extend by 2 rounds: nobody could take it for 30 s")

    monkeypatch.setattr(federation, "ask_for_change", hear_nothing)
    monkeypatch.setattr(federation, "read_node", lambda _path: SimpleNamespace(node=None))
    (tmp_path / "operator-0.toml").touch()
    command = ["extend", "--rounds", "2", "--federation", str(tmp_path / "operator-0.toml")]
    assert main(command) == 1
    ticket = asked[0].ticket
    assert f"it may still hold later: try again with `--ticket {ticket}`" in capsys.readouterr().err
    main([*command, "--ticket", ticket])
    assert asked[1] == asked[0]
