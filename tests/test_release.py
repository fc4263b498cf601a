"""What `make release` checks: one version everywhere, and complete files."""

import io
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest

import cfel
from tests.support.scripts import load_script

ROOT = Path(__file__).parents[1]
METADATA = """Metadata-Version: 2.4
Name: cfel
Version: 9.9
Summary: s
Author: a
License-Expression: Apache-2.0
Requires-Python: >=3.11
Keywords: k
Classifier: c
Description-Content-Type: text/markdown

# cfel
"""


release = load_script(ROOT / "tools" / "release.py")


def _build(folder: Path, extra: str = "") -> None:
    """A wheel and an sdist of version 9.9 with the expected files, empty; `extra` is one more name."""
    information = "cfel-9.9.dist-info"
    with zipfile.ZipFile(folder / "cfel-9.9-py3-none-any.whl", "w") as wheel:
        for name in (*release.EXPECTED_IN_WHEEL, f"{information}/entry_points.txt", *filter(None, [extra])):
            wheel.writestr(name, "")
        wheel.writestr(f"{information}/licenses/LICENSE", "")
        wheel.writestr(f"{information}/METADATA", METADATA)
    with tarfile.open(folder / "cfel-9.9.tar.gz", "w:gz") as sdist:
        for name in release.EXPECTED_IN_SDIST:
            sdist.addfile(tarfile.TarInfo(f"cfel-9.9/{name}"))
        member = tarfile.TarInfo("cfel-9.9/PKG-INFO")
        member.size = len(METADATA)
        sdist.addfile(member, io.BytesIO(METADATA.encode()))


def test_all_files_name_the_same_version() -> None:
    assert release.check_version() == cfel.__version__


def test_versions_that_differ_are_named(tmp_path: Path) -> None:
    for file in release.PATTERNS:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    (tmp_path / "CITATION.cff").write_text("version: 7.0\n", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"differ: .*CITATION\.cff 7\.0"):
        release.check_version(tmp_path)


def test_complete_files_have_no_faults(tmp_path: Path) -> None:
    _build(tmp_path)
    assert list(release.find_faults(tmp_path, "9.9")) == []


def test_faults_are_named(tmp_path: Path) -> None:
    _build(tmp_path, extra="tests/conftest.py")
    (tmp_path / "cfel-9.8.tar.gz").touch()
    assert list(release.find_faults(tmp_path, "9.9")) == [
        f"{tmp_path} also holds cfel-9.8.tar.gz",
        "cfel-9.9-py3-none-any.whl holds tests/conftest.py, which is not part of the package",
    ]
    (tmp_path / "cfel-9.8.tar.gz").unlink()
    assert list(release.find_faults(tmp_path, "1.0"))[1:] == [
        "cfel-1.0-py3-none-any.whl is missing",
        "cfel-1.0.tar.gz is missing",
    ]


def test_metadata_without_a_field_or_a_description_is_a_fault() -> None:
    text = METADATA.replace("Keywords: k\n", "").replace("\n# cfel\n", "\n")
    assert list(release._find_faults_of_metadata(text, "9.9")) == [
        "its metadata has no Keywords",
        "its description is empty",
    ]


def test_a_changelog_without_a_date_is_left_to_do(tmp_path: Path) -> None:
    page = tmp_path / "CHANGELOG.md"
    page.write_text("# Changelog\n\n## 9.9 — unreleased\n", encoding="utf-8")
    assert "write the date" in next(iter(release.list_steps("9.9", tmp_path)))
    page.write_text("# Changelog\n\n## 9.9 — 2027-01-31\n", encoding="utf-8")
    assert not any("date" in step for step in release.list_steps("9.9", tmp_path))
