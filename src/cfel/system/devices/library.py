"""The library of device classes that comes with cfel: `library.toml`, where each figure has its origin.

The figures are good for planning and for comparing kinds of devices, but not measurements of your boards.
"""

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from types import MappingProxyType

from cfel.system.devices.class_file import ClassFile, parse_class_file
from cfel.system.devices.device_class import DeviceClass


def read_library() -> ClassFile:
    """The library with the origin of every figure."""
    text = files("cfel.system.devices").joinpath("library.toml").read_text(encoding="utf-8")
    return parse_class_file(tomllib.loads(text), "library.toml")


DEVICE_CLASSES: Mapping[str, DeviceClass] = MappingProxyType(
    {each.device.name: each.device for each in read_library().classes}
)
"""The classes of the library, by name."""
