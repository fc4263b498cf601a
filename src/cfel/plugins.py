"""Names in an experiment file that stand for code: built in, an entry point, or `module:function`.

Every kind of part (scheme, compressor, topology, data set, model, task) is looked up the same way, so that
adding one from outside the package needs no change inside it. Nothing is looked up at import time.
"""

import importlib
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from cfel.errors import InputError, unknown_name


def resolve(kind: str, name: str, builtin: Mapping[str, Any]) -> Any:  # noqa: ANN401 — a part of any kind
    """The part called `name`.

    Args:
        kind: "scheme", "model", ...; entry points of the group `cfel.<kind>` are searched.
        name: a built-in name, an installed entry point's name, or "module:function".
        builtin: the parts that come with cfel.

    Raises:
        InputError: nothing of that name exists, or the module cannot be imported.
    """
    if name in builtin:
        return builtin[name]
    if ":" in name:
        return _loaded(kind, name, lambda: _attribute(name))
    installed = {point.name: point for point in entry_points(group=f"cfel.{kind}")}
    if name in installed:
        return _loaded(kind, name, installed[name].load)
    raise InputError(unknown_name(kind, name, [*builtin, *installed, "module:function"]))


def _attribute(name: str) -> object:
    module_name, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module_name), attribute)


def _loaded(kind: str, name: str, load: Callable[[], object]) -> Callable[..., Any]:
    try:
        found = load()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise InputError(f"{kind}: cannot load {name!r}: {error}") from error
    if not callable(found):
        raise InputError(f"{kind}: {name!r} is a {type(found).__name__}, not a function")
    return found


def import_from(*folders: Path) -> None:
    """Lets "module:function" names be found in some folders and the current one, behind everything installed.

    Behind, so that a file called like a module of Python's own does not take its place.
    """
    for folder in (*folders, Path()):
        place = str(folder.absolute())
        if place not in sys.path:
            sys.path.append(place)
