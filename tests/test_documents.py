"""Documents keep up with the code: links lead somewhere, what they name exists, every key is described."""

import ast
import importlib
import importlib.util
import json
import re
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cfel.experiment.experiment import SECTIONS
from cfel.experiment.sections import CONDITIONS, keys_of
from cfel.system.device_classes import DeviceClass
from cfel.system.fleet import Availability
from tests.support.scripts import load_script

ROOT = Path(__file__).parents[1]
FOLDERS = ("*.md", "docs/**/*.md", "results/*.md", "experiments/*.md")
PAGES = sorted(path for places in FOLDERS for path in ROOT.glob(places))
SOURCE = ROOT / "src" / "cfel"
MAP = (ROOT / "docs" / "paper-map.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_files_exist(page: Path) -> None:
    """Paths are written from the root, from `src/cfel`, from `tests` or from the page's own folder.

    A tutorial may also name a file that it has the reader save.
    """
    places = (ROOT, SOURCE, ROOT / "tests", ROOT / "tests" / "deployment", ROOT / "examples", page.parent)
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:[\w.-]+/)*\w+\.py)`", text)) - set(
        re.findall(r"[Ss]ave\s+this\s+as\s+`(.+?)`", text)
    )
    assert [file for file in named if not any((place / file).exists() for place in places)] == []


def test_the_architecture_describes_every_package() -> None:
    """One row each, `package/` and its sentence; and no row for a package that does not exist."""
    described = re.findall(r"^\| `([\w/]+/)` \| \S", ARCHITECTURE, re.MULTILINE)
    packages = [f"{path.parent.relative_to(SOURCE)}/" for path in SOURCE.rglob("__init__.py")]
    assert sorted(described) == sorted(package for package in packages if package != "./")


def test_the_architecture_draws_the_layers_that_are_enforced() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    enforced = [set(re.findall(r"\w+", layer)) for layer in contracts["contracts"][0]["layers"]]
    (picture,) = re.findall(r"## Layers\n.*?```\n(.*?)```", ARCHITECTURE, re.DOTALL)
    drawn = [set(re.findall(r"\w+", line.split("  ")[0])) for line in picture.splitlines()]
    assert drawn == enforced


PARSERS: dict[str, Callable[[str], object]] = {
    "toml": tomllib.loads,
    "json": json.loads,
    "python": lambda text: compile(text, "page", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT),
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_can_be_parsed(page: Path) -> None:
    blocks = re.findall(
        r"^ *```(\w+)\n(.*?)^ *```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    for language, content in blocks:
        if language in PARSERS:
            PARSERS[language](textwrap.dedent(content))


def test_the_reference_has_a_table_of_every_section() -> None:
    """Its rows come from docstrings, so each key needs one; `list_keys` raises otherwise."""
    docstrings = load_script(ROOT / "docs" / "_extensions" / "docstrings.py")
    page = (ROOT / "docs" / "reference" / "experiment.md").read_text(encoding="utf-8")
    shown = [docstrings.find(name) for name in re.findall(r"{experiment-keys} (\S+)", page)]
    assert set(shown) == {*SECTIONS.values(), *CONDITIONS.values(), Availability, DeviceClass}
    for parameters in shown:
        assert [key for key, *_ in docstrings.list_keys(parameters)] == [
            f"`{key}`" for key in keys_of(parameters)
        ]


def test_a_key_without_words_is_an_error() -> None:
    @dataclass
    class Undocumented:
        """A section.

        Attributes:
            known: what it is,
                in two lines.
        """

        known: int = 1
        forgotten: int = 2

    docstrings = load_script(ROOT / "docs" / "_extensions" / "docstrings.py")
    assert docstrings.read_attributes(Undocumented) == {"known": "what it is, in two lines."}
    with pytest.raises(docstrings.UndocumentedError, match=r"Undocumented\.forgotten"):
        docstrings.list_keys(Undocumented)


def test_what_a_field_is_stands_beside_it() -> None:
    @dataclass
    class Commented:
        """A section; what `note: this` looks like is not a field."""

        known: int = 1  # what it is
        # Said in two lines, because
        # it takes as many.
        longer: str = "x"
        both: str | None = None

        def method(self) -> None:
            # A comment of code.
            value: int = 1
            del value

    docstrings = load_script(ROOT / "docs" / "_extensions" / "docstrings.py")
    found = docstrings.read_attributes(Commented)
    assert found["known"] == "what it is"
    assert found["longer"] == "Said in two lines, because it takes as many."
    with pytest.raises(docstrings.UndocumentedError, match=r"Commented\.both"):
        docstrings.list_keys(Commented)
