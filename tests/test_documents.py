"""Documents keep up with the code: links lead somewhere, and what the paper's map names is there."""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    path for folder in (".", "docs", "results", "experiments") for path in (ROOT / folder).glob("*.md")
)
MAP = (ROOT / "docs" / "paper-map.md").read_text(encoding="utf-8")
TESTS = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))


def _links(page: Path) -> Iterator[str]:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if not link.startswith(("http://", "https://", "#", "mailto:")):
            yield link.partition("#")[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert [link for link in _links(page) if not (page.parent / link).exists()] == []


def test_the_papers_map_names_tests_that_exist() -> None:
    named = re.findall(r"`(?:([\w/]+\.py)(?:::)?)?(test_\w+)?`", MAP)
    files = [file for file, _ in named if file]
    assert files
    assert [file for file in files if not (ROOT / "tests" / file).exists()] == []
    tests = [test for _, test in named if test]
    assert tests
    assert [test for test in tests if f"def {test}(" not in TESTS] == []


def test_the_papers_map_names_functions_that_exist() -> None:
    named = re.findall(r"`((?:api|control|cost|learning|reproduce|rounds|simulation|system)(?:\.\w+)+)`", MAP)
    assert len(named) > 30
    assert [name for name in named if not _exists(name)] == []


def _exists(name: str) -> bool:
    """Whether a dotted name below `cfel` leads through modules to something they have."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(["cfel", *parts[:length]]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[length:]:
            if not hasattr(found, attribute):
                return False
            found = getattr(found, attribute)
        return True
    return False
