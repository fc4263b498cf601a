"""The environment of the peers."""

from importlib.metadata import version
from pathlib import Path

import pytest

from cfel.bench.peers.environment import PINS, prepare_environment
from cfel.errors import InputError


def test_an_installed_environment_is_used_again(tmp_path: Path) -> None:
    torch = version("torch").partition("+")[0]
    (tmp_path / "installed.txt").write_text(f"torch=={torch}\n{PINS['pfl']}\n", encoding="utf-8")
    assert prepare_environment(tmp_path, ("pfl",)) == tmp_path / "bin" / "python"


@pytest.mark.long
def test_a_failed_installation_names_package_and_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(InputError, match="pfl==") as failure:
        prepare_environment(tmp_path / "peers", ("pfl",))
    assert str(tmp_path / "peers") in str(failure.value)
    assert not (tmp_path / "peers" / "installed.txt").exists()
