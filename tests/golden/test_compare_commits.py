"""The comparison of two commits runs what there is to run, and finds what differs."""

import shutil
from pathlib import Path

import pytest

from tests.golden import matrix
from tests.golden.compare_commits import ROOT, main
from tests.golden.entries import ALGORITHMS, COMPRESSORS, SCHEMES


def test_names_are_unique() -> None:
    names = [case.name for case in matrix.list_cases()]
    assert len(set(names)) == len(names)


def test_every_scheme_algorithm_and_compressor_is_run() -> None:
    assert set(matrix.SCHEMES) == set(SCHEMES)
    assert set(matrix.ALGORITHMS) == set(ALGORITHMS)
    assert {*matrix.COMPRESSORS, "none"} == set(COMPRESSORS)


def test_unknown_names_are_rejected() -> None:
    with pytest.raises(SystemExit, match="no such case: hcf"):
        main([".", ".", "--except", "hcf"])
    with pytest.raises(SystemExit, match="no case has hcf"):
        main([".", ".", "--only", "hcf"])


@pytest.mark.long
def test_a_changed_tree_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed = tmp_path / "changed"
    for part in ("src", "examples"):
        shutil.copytree(ROOT / part, changed / part)
    preset = changed / "src" / "cfel" / "presets" / "demo.toml"
    text = preset.read_text(encoding="utf-8")
    preset.write_text(text.replace("momentum = 0.9", "momentum = 0.8"), encoding="utf-8")
    assert main([str(ROOT), str(changed), "--only", "momentum", "--except", "edge momentum"]) == 1
    printed = capsys.readouterr().out
    assert "momentum reset: DIFFERS\n    rounds[0].model_sha256" in printed
    assert "edge momentum: expected" in printed
    # Both state their momentum themselves.
    assert "4 cases, 2 differ, 1 unexpectedly" in printed
