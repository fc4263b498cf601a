"""What fuzzing once found, and a few seconds more of it. `make fuzz` runs for as long as you like."""

import random
from pathlib import Path

import pytest

from tests.fuzz import directories, tables, wire

CORPUS = Path(__file__).with_name("corpus")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return directories.make_run(tmp_path_factory.mktemp("fuzz") / "run")


@pytest.mark.parametrize("file", sorted((CORPUS / "directories").glob("*.json")), ids=lambda file: file.stem)
def test_what_was_found_in_directories(run: Path, tmp_path: Path, file: Path) -> None:
    directories.try_case(run, tmp_path / "case", directories.load_case(file.read_text()))


@pytest.mark.parametrize("seed", range(12))
def test_random_changes_to_directories(run: Path, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311 — to be drawn again, not to be secret
    directories.try_case(run, tmp_path / "case", directories.make_case(draw, run))


@pytest.mark.parametrize("seed", range(4))
def test_random_changes_to_messages(seed: int) -> None:
    for number in range(1000):
        wire.try_case(random.Random(f"{seed}-{number}"))  # noqa: S311


@pytest.mark.parametrize("seed", range(8))
def test_random_changes_to_tables(tmp_path: Path, seed: int) -> None:
    tables.try_case(tmp_path, *tables.make_case(random.Random(seed)))  # noqa: S311
