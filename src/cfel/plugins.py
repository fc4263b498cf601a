"""Names in an experiment file that stand for code: built in, an entry point, or `module:function`.

Every kind of part (scheme, compressor, topology, data set, model, task) is looked up the same way, so that
adding a user-defined one needs no change inside the package. Nothing is looked up at import time.

A user-defined name stands for code that runs in this process. So every lookup takes a `CodePolicy`, and by
default only built-in names work: a run directory that somebody else sent must not run anything.

In Python a part can be given as an object instead of a name. It then gets a label in angle brackets, which
stands for it in the experiment file, and the policy knows the object behind each label.
"""

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cfel.errors import CfelError, InputError, unknown_name
from cfel.wording import show


@dataclass(frozen=True, slots=True)
class CodePolicy:
    """Whether names may stand for code from outside the package."""

    reason: str
    """Why only built-in names work, and what to do about it; empty where any name does."""
    objects: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """Parts that were given as objects, by the names that stand for them."""

    def check(self, kind: str, name: str) -> None:
        """Raises an `InputError` if this name, which is not built in, must not be loaded."""
        if self.reason:
            raise InputError(f"{kind}: {show(name)} is not built in, and {self.reason}")

    def add_objects(self, objects: Mapping[str, Any]) -> "CodePolicy":
        """The policy with more names for objects."""
        return replace(self, objects={**self.objects, **objects})


ANY_CODE = CodePolicy("")
"""For experiments that the user wrote."""

BUILT_IN_ONLY = CodePolicy("only built-in names are allowed here")
"""The default."""

NOT_FROM_DIRECTORIES = CodePolicy(
    "a directory may come from somebody else, so no code that it names is run; if you trust it, add --trust"
)
"""For the experiment in a run directory."""


def resolve(
    kind: str,
    name: str,
    builtin: Mapping[str, Any],
    takes: tuple[str, ...] | None = None,
    *,
    code: CodePolicy = BUILT_IN_ONLY,
) -> Any:  # noqa: ANN401 — a part of any kind
    """Finds a part by its kind ("scheme", "model", …) and name.

    The name is built in, an entry point of the group `cfel.<kind>`, or "module:function". `takes` is what the
    part will be called with, one name per positional argument; None if that is not known.
    """
    if name in builtin:
        return builtin[name]
    if name in code.objects:
        found = code.objects[name]
    elif is_label(name):
        raise InputError(
            f"{kind}: {show(name)} is a Python object that no file can hold; give the same `cfel.Experiment` "
            "again, from Python"
        )
    elif ":" in name:
        code.check(kind, name)
        module, _, attribute = name.partition(":")
        found = _load(kind, name, lambda: getattr(importlib.import_module(module), attribute))
    else:
        installed = {point.name: point for point in entry_points(group=f"cfel.{kind.replace(' ', '_')}")}
        if name not in installed:
            known = unknown_name(kind, name, [*builtin, *installed, "module:function"])
            raise InputError(f"{known}{_suggest_colon(name)}")
        code.check(kind, name)
        found = _load(kind, name, installed[name].load)
    if takes is not None:
        check_call(f"{kind} {name!r}", found, takes)
    return found


def label_object(kind: str, found: object, digest: str = "") -> str:
    """The name that stands for an object in an experiment file.

    A function that can be imported gets its "module:function", which the file can be run with. Anything else
    gets a label in angle brackets, with its kind ("scheme", "model", …), so that parts of different kinds
    have different labels, and a digest of its content, so that a run is not resumed with other content.
    """
    name = getattr(found, "__qualname__", type(found).__qualname__)
    module = getattr(found, "__module__", None)
    # Whatever runs as `__main__` has another name in the next process.
    importable = module not in (None, "__main__") and getattr(sys.modules.get(module), name, None) is found
    if importable and not digest:
        return f"{module}:{name}"
    return f"<{kind} {name.rpartition('.<locals>.')[2]}{f' {digest}' if digest else ''}>"


def is_label(name: str) -> bool:
    return name.startswith("<")


def check_call(what: str, function: Callable[..., Any], takes: tuple[str, ...]) -> None:
    """Raises an `InputError` unless `function` can be called with these positional arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        # Some functions written in C have no signature; a mistake shows when they are called.
        return
    try:
        signature.bind(*takes)
    except TypeError as error:
        raise InputError(
            f"{what}: is called with ({', '.join(takes)}), but its signature is {signature}: {error}"
        ) from error


def check_result(what: str, found: object, wanted: type) -> None:
    """Raises an `InputError` unless `found`, what a part gave, is of the type it has to be."""
    if not isinstance(found, wanted):
        raise InputError(f"{what} returned a {type(found).__name__}, not a {wanted.__name__}")


def call_part(what: str, function: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401 — of any part
    """Calls a part that the user wrote."""
    try:
        return function(*arguments)
    except CfelError:
        raise
    except Exception as error:
        raise InputError(f"{what} failed{_find_line(error)}: {type(error).__name__}: {error}") from error


def _find_line(error: Exception) -> str:
    """The last line of a traceback that is neither this package's nor an installed one's."""
    own = str(Path(__file__).parent)
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [each for each in frames if own not in each.filename and "site-packages" not in each.filename]
    return f" in {Path(theirs[-1].filename).name}, line {theirs[-1].lineno}" if theirs else ""


def _load(kind: str, name: str, load: Callable[[], object]) -> Callable[..., Any]:
    try:
        found = load()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise InputError(f"{kind}: cannot load {name!r}: {error}{_advise(name, error)}") from error
    if not callable(found):
        raise InputError(f"{kind}: {name!r} is a {type(found).__name__}, not a function")
    return found


def _suggest_colon(name: str) -> str:
    """What to write where the point should be a colon: `my_parts:table` for `my_parts.table`."""
    module, _, function = name.rpartition(".")
    if not function.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        return ""
    return f"; if this is a function of yours, write '{module}:{function}'"


def _advise(name: str, error: Exception) -> str:
    """What to do about a "module:function" that cannot be loaded."""
    module, _, function = name.partition(":")
    if module.endswith(".py"):
        return f"; write '{module[:-3]}:{function}', without .py"
    if isinstance(error, ModuleNotFoundError) and error.name == module:
        return (
            f"; {module}.py is searched beside the experiment file, in the current folder and in PYTHONPATH"
        )
    if isinstance(error, AttributeError):
        near = get_close_matches(function, vars(sys.modules.get(module, object)), n=1)
        return f"; did you mean '{module}:{near[0]}'?" if near else ""
    return ""


def import_from(*folders: Path) -> None:
    """Lets "module:function" names be found in some folders and in the current one.

    The folders come last on the path, so that a file named like a standard module does not replace it.
    """
    for folder in (*folders, Path()):
        place = str(folder.absolute())
        if place not in sys.path:
            sys.path.append(place)


VARIANTS: Mapping[str, tuple[str, str | bool]] = MappingProxyType(
    {
        "whole_steps": ("steps", "whole"),
        "small_batches": ("steps", "small_batches"),
        "last_layers": ("steps", "last_layers"),
        "edge_gossip": ("gossip", "edge_round"),
        "slow_clocks": ("slow_clocks", True),
    }
)
"""Variants in names of schemes, as lists, folders and tables write them (`hcef+edge_gossip`), and the key and
value of `[scheme]` that each stands for. `cfel.control.schemes` says what each does."""

DEADLINE = "deadline_"
"""How a deadline is written among the variants: `cef+deadline_300` for `deadline_seconds = 300`."""


def parse_variants(text: str) -> dict[str, Any]:
    """The fields of `SchemeParameters` that "hcef+edge_gossip" stands for."""
    name, *variants = text.split("+")
    pairs = [_parse_variant(text, variant) for variant in variants]
    if len({key for key, _ in pairs}) < len(pairs):
        raise InputError(f"scheme {text!r}: two of its variants contradict each other")
    return {"name": name, **dict(pairs)}


def _parse_variant(text: str, variant: str) -> tuple[str, str | bool | float]:
    if variant in VARIANTS:
        return VARIANTS[variant]
    if variant.startswith(DEADLINE):
        try:
            return "deadline_seconds", float(variant.removeprefix(DEADLINE))
        except ValueError:
            raise InputError(f"scheme {text!r}: {variant!r} must end with seconds, as deadline_300") from None
    hint = "" if variant else "; HCEF+ is written hcef_plus"
    known = (*VARIANTS, f"{DEADLINE}300")
    raise InputError(unknown_name(f"scheme {text!r}: variant", variant, known) + hint)


def name_variants(scheme: Mapping[str, Any]) -> str:
    """The name of a scheme with its variants, from a `[scheme]` table; the reverse of `parse_variants`."""
    set_here = [variant for variant, (key, value) in VARIANTS.items() if scheme.get(key) == value]
    # A table from a directory may hold anything.
    if isinstance(seconds := scheme.get("deadline_seconds"), int | float):
        set_here.append(f"{DEADLINE}{seconds:g}")
    return "+".join([str(scheme["name"]), *set_here])
