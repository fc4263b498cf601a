"""Every package has tests."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "cfel"
PACKAGES = sorted(path.parent.relative_to(SOURCE) for path in SOURCE.rglob("__init__.py"))


@pytest.mark.parametrize("package", PACKAGES, ids=str)
def test_every_package_has_tests(package: Path) -> None:
    assert list((ROOT / "tests" / package).glob("test_*.py"))
