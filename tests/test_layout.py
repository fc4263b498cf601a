"""The source tree keeps its shape: every package has tests; modules and directories stay small."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "cfel"
PACKAGES = sorted(path.parent.relative_to(SOURCE) for path in SOURCE.rglob("__init__.py"))
MOST_MODULES = 15
ONE_FILE_EACH = (Path("cli"), Path("control/schemes"))
MOST_LINES = 300


@pytest.mark.parametrize("package", PACKAGES, ids=str)
def test_every_package_has_tests(package: Path) -> None:
    assert list((ROOT / "tests" / package).glob("test_*.py"))


@pytest.mark.parametrize("package", [each for each in PACKAGES if each not in ONE_FILE_EACH], ids=str)
def test_no_directory_holds_too_many_modules(package: Path) -> None:
    """Except where there is one file per command or per scheme."""
    assert len(list((SOURCE / package).glob("*.py"))) <= MOST_MODULES


def test_no_module_is_too_long() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCE.rglob("*.py")}
    assert [str(path.relative_to(SOURCE)) for path, lines in lengths.items() if lines > MOST_LINES] == []
