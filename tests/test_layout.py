"""The source tree keeps its shape: every package has tests; directories stay small."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "cfel"
PACKAGES = sorted(path.parent.relative_to(SOURCE) for path in SOURCE.rglob("__init__.py"))
MOST_MODULES = 15
ONE_FILE_EACH = (Path("cli"), Path("control/schemes"))


@pytest.mark.parametrize("package", PACKAGES, ids=str)
def test_every_package_has_tests(package: Path) -> None:
    assert list((ROOT / "tests" / package).glob("test_*.py"))


@pytest.mark.parametrize("package", [each for each in PACKAGES if each not in ONE_FILE_EACH], ids=str)
def test_no_directory_holds_too_many_modules(package: Path) -> None:
    """Except where there is one file per command or per scheme."""
    assert len(list((SOURCE / package).glob("*.py"))) <= MOST_MODULES
