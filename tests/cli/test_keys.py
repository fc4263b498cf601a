"""`cfel keys` lists every key that an experiment file can have."""

import json
from collections.abc import Mapping

import pytest

from cfel.cli import main
from cfel.control import SCHEMES
from cfel.experiment.experiment import SECTIONS
from cfel.experiment.key_reference import list_tables
from cfel.learning.compressors import BUILTIN as COMPRESSORS
from cfel.learning.local.algorithms import ALGORITHMS


def test_every_table_and_key_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys"]) == 0
    text = capsys.readouterr().out
    for section in SECTIONS:
        assert f"[{section}]" in text
    for word in ("share_of_cef = –", 'kind = "trace"', "away_probability = 0"):
        assert word in text


def test_a_word_selects_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "local.step"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if " = " in line]
    assert [line.split(" = ")[0].strip() for line in lines] == ["steps", "step_overhead"]


@pytest.mark.parametrize(
    ("key", "parts"),
    [("scheme.name", SCHEMES), ("compression.kind", COMPRESSORS), ("local.algorithm", ALGORITHMS)],
)
def test_parts_are_listed_where_they_are_named(
    key: str, parts: Mapping[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["keys", key, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["values"] == ", ".join([*parts, "module:function"])


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == sum(len(entries) for _, _, entries in list_tables())
    (found,) = (row for row in rows if row["key"] == "rounds.stop")
    assert "budget" in found["meaning"]
    assert "`" not in json.dumps([row["values"] for row in rows])


@pytest.mark.parametrize(("word", "line"), [("SEED", "seed = 0"), ("learning_r", "η > 0.")])
def test_words_in_any_case_and_keys_without_a_table(
    word: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["keys", word]) == 0
    assert line in capsys.readouterr().out


def test_an_unknown_word_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "learning-rate"]) == 2
    assert "no key contains 'learning-rate'" in capsys.readouterr().err
