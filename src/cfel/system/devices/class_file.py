"""Files of device classes: TOML with one table per class, and beside each figure how it was obtained.

    [sources]
    bench = "our lab notes, March"

    [classes.my-board]
    title = "The board on my desk"
    flops_per_second = 31e9
    flops_per_second_how = "50 × 123.9e6 FLOP in 0.2 s [bench]"

The library, `cfel calibrate` and imported power profiles share this form. `_how` and `[sources]` are optional
in a file of a user. This module handles documents, not paths: who reads a file knows whom it may come from.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from cfel import validation
from cfel.errors import InputError, unknown_name
from cfel.system.devices.device_class import DeviceClass
from cfel.wording import show

FIGURES = tuple(entry.name for entry in fields(DeviceClass) if entry.name not in ("name", "source"))
REQUIRED = FIGURES[:4]
_HOW = "_how"
_KEYS = ("title", *FIGURES, *(figure + _HOW for figure in FIGURES))


@dataclass(frozen=True, slots=True)
class DescribedClass:
    """A device class with its origin.

    Attributes:
        device: the figures.
        how: for some or all figures, how they were obtained; sources in square brackets.
    """

    device: DeviceClass
    how: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ClassFile:
    """The content of a file.

    Attributes:
        classes: in the file's order.
        sources: key → citation.
    """

    classes: tuple[DescribedClass, ...]
    sources: Mapping[str, str]


def parse_class_file(document: Mapping[str, Any], place: str) -> ClassFile:
    """The classes that a TOML document describes.

    Args:
        document: as parsed.
        place: the file, for messages.

    Raises:
        InputError: names the place, the class, the key and the value.
    """
    for key in document:
        if key not in ("sources", "classes"):
            raise InputError(unknown_name(f"{place}: top level", key, ("sources", "classes")))
    tables = _check_table(f"{place}: classes", document.get("classes"))
    sources = _check_table(f"{place}: sources", document.get("sources", {}))
    for key, text in sources.items():
        validation.check_text(f"{place}: sources.{key}", text)
    return ClassFile(tuple(_parse_class(name, table, place) for name, table in tables.items()), sources)


def _parse_class(name: str, given: object, place: str) -> DescribedClass:
    where = f"{place}: classes.{name}"
    table = _check_table(where, given)
    for key in table:
        if key not in _KEYS:
            raise InputError(unknown_name(where, key, _KEYS))
    missing = next((figure for figure in REQUIRED if figure not in table), None)
    if missing is not None:
        raise InputError(f"{where}.{missing}: is missing")
    how = {key.removesuffix(_HOW): table[key] for key in table if key.endswith(_HOW)}
    for figure, text in how.items():
        validation.check_text(f"{where}.{figure}{_HOW}", text)
    title = validation.check_text(f"{where}.title", table.get("title", name))
    figures = {figure: table[figure] for figure in FIGURES if figure in table}
    try:
        return DescribedClass(DeviceClass(name=name, source=title, **figures), how)
    except InputError as error:
        raise InputError(f"{place}: {error}") from error


def _check_table(where: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{where} = {show(value)}: must be a table")
    return value


def class_file_toml(content: ClassFile) -> str:
    """The file's text; `parse_class_file` reads the same classes from it."""
    # Imported here, as only those who write such a file need it.
    import tomli_w

    document: dict[str, Any] = {"sources": dict(content.sources)} if content.sources else {}
    document["classes"] = {each.device.name: _class_table(each) for each in content.classes}
    return tomli_w.dumps(document)


def _class_table(described: DescribedClass) -> dict[str, Any]:
    table: dict[str, Any] = {"title": described.device.source}
    for figure in FIGURES:
        table[figure] = getattr(described.device, figure)
        if figure in described.how:
            table[figure + _HOW] = described.how[figure]
    return table
