"""Kinds of devices: what one kind is, a library of sourced ones, and files and phone profiles to add more."""

from cfel.system.devices.class_file import ClassFile, DescribedClass, class_file_toml, parse_class_file
from cfel.system.devices.device_class import DeviceClass
from cfel.system.devices.library import DEVICE_CLASSES, read_library
from cfel.system.devices.power_profile import PowerProfile, read_power_profile
from cfel.system.devices.profile_class import RADIOS, ProfileOptions, derive_class

__all__ = [
    "DEVICE_CLASSES",
    "RADIOS",
    "ClassFile",
    "DescribedClass",
    "DeviceClass",
    "PowerProfile",
    "ProfileOptions",
    "class_file_toml",
    "derive_class",
    "parse_class_file",
    "read_library",
    "read_power_profile",
]
