"""Names that stand for code."""

import math
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from cfel import plugins
from cfel.errors import InputError

BUILTIN = {"hcef": len, "cef": max}


def test_a_built_in_part() -> None:
    assert plugins.resolve("scheme", "hcef", BUILTIN, code=plugins.ANY_CODE) is len


def test_a_function_of_a_module() -> None:
    assert plugins.resolve("scheme", "math:sqrt", BUILTIN, code=plugins.ANY_CODE) is math.sqrt


def test_a_module_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own_scheme.py").write_text("def build():\n    return 7\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert plugins.resolve("scheme", "my_own_scheme:build", BUILTIN, code=plugins.ANY_CODE)() == 7


def installed(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """Pretends that a package offers a scheme called `theirs`."""

    def points(group: str) -> list[EntryPoint]:
        return [EntryPoint("theirs", value, group)] if group in ("cfel.scheme", "cfel.edge_optimiser") else []

    monkeypatch.setattr(plugins, "entry_points", points)


def test_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "math:sqrt")
    assert plugins.resolve("scheme", "theirs", BUILTIN, code=plugins.ANY_CODE) is math.sqrt
    with pytest.raises(InputError, match=r"^model: unknown 'theirs'"):
        plugins.resolve("model", "theirs", BUILTIN, code=plugins.ANY_CODE)
    with pytest.raises(InputError, match="did you mean 'theirs'"):
        plugins.resolve("scheme", "their", BUILTIN, code=plugins.ANY_CODE)


def test_an_entry_point_of_a_part_with_two_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of a group of entry points has no space."""
    installed(monkeypatch, "math:sqrt")
    assert plugins.resolve("edge optimiser", "theirs", BUILTIN, code=plugins.ANY_CODE) is math.sqrt


@pytest.mark.parametrize("value", ["no_such_module_anywhere:f", "math:no_such_function"])
def test_an_entry_point_that_does_not_load(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    installed(monkeypatch, value)
    with pytest.raises(InputError, match=r"cannot load 'theirs': .*no_such_"):
        plugins.resolve("scheme", "theirs", BUILTIN, code=plugins.ANY_CODE)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "hcf",
            r"^scheme: unknown 'hcf'; did you mean 'hcef'\? \(allowed: cef, hcef, module:function\)$",
        ),
        ("", r"^scheme: unknown '' \(allowed: "),
        ("no_such_module_anywhere:f", r"^scheme: cannot load 'no_such_module_"),
        (
            "no_such_module_anywhere:f",
            r"; no_such_module_anywhere\.py is ",
        ),
        ("no_such_file.py:f", r"; write 'no_such_file:f', without \.py$"),
        ("math:sqr", r"; did you mean 'math:sqrt'\?$"),
        (
            "math.sqrt",
            r"^scheme: unknown 'math\.sqrt' .*; if this is a function of yours, write 'math:sqrt'$",
        ),
        ("math:no_such_function", r"^scheme: cannot load .*no attribute 'no_such_function'"),
        ("math:", r"^scheme: cannot load 'math:'"),
        (":f", r"^scheme: cannot load ':f'"),
        (".relative:f", r"^scheme: cannot load '\.relative:f'"),
        ("math:pi", r"^scheme: 'math:pi' is a float, not a function$"),
    ],
)
def test_what_cannot_be_found(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        plugins.resolve("scheme", name, BUILTIN, code=plugins.ANY_CODE)


@pytest.mark.parametrize("name", ["math:sqrt", "theirs", "no_such_module_anywhere:f"])
def test_only_built_in_names_unless_more_is_allowed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    installed(monkeypatch, "math:sqrt")
    monkeypatch.setattr(plugins, "_load", lambda *_: pytest.fail("loaded"))
    with pytest.raises(InputError, match=rf"^scheme: '{name}' is not built in, and only built-in names are"):
        plugins.resolve("scheme", name, BUILTIN)
    with pytest.raises(InputError, match=r"so no code that it names is run; if you trust it, add --trust$"):
        plugins.resolve("scheme", name, BUILTIN, code=plugins.NOT_FROM_DIRECTORIES)
    assert plugins.resolve("scheme", "hcef", BUILTIN, code=plugins.NOT_FROM_DIRECTORIES) is len
