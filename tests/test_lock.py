"""Requirements with hashes, from pip's report of what it would install."""

from pathlib import Path

import pytest

from tests.support.scripts import load_script

lock = load_script(Path(__file__).parents[1] / "tools" / "lock.py")


def package(name: str, download: dict[str, object]) -> dict[str, object]:
    return {"metadata": {"name": name, "version": "1.2"}, "download_info": download}


def test_every_package_but_cfel_has_its_hash() -> None:
    report = {
        "install": [package("torch", {"archive_info": {"hashes": {"sha256": "ab"}}}), package("cfel", {})]
    }
    assert list(lock.make_lines(report)) == ["torch==1.2 --hash=sha256:ab"]


def test_a_package_without_a_hash_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"torch 1\.2: the index gives no SHA-256"):
        list(lock.make_lines({"install": [package("torch", {"dir_info": {}})]}))
