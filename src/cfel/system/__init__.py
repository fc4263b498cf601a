"""The system: devices, clusters, the backhaul between edge servers, and conditions that change over time.

The names below are imported on first use, so that planning a round does not load graphs and traces.
"""

from typing import TYPE_CHECKING

from cfel.extras import import_on_use

if TYPE_CHECKING:
    from cfel.system.availability import Availability
    from cfel.system.backhaul import (
        Backhaul,
        TopologyParameters,
        build_backhaul,
        check_mixing,
        describe_bias,
        target_weights,
        zeta,
    )
    from cfel.system.conditions import Conditions, RandomConditions
    from cfel.system.device_classes import DEVICE_CLASSES, DeviceClass, HardwareConditions
    from cfel.system.device_table import read_devices
    from cfel.system.fleet import Fleet, FleetParameters, build_fleet, cluster_sizes
    from cfel.system.traces import TraceConditions, TraceParameters, describe_short_trace, read_trace

__all__ = [
    "DEVICE_CLASSES",
    "Availability",
    "Backhaul",
    "Conditions",
    "DeviceClass",
    "Fleet",
    "FleetParameters",
    "HardwareConditions",
    "RandomConditions",
    "TopologyParameters",
    "TraceConditions",
    "TraceParameters",
    "build_backhaul",
    "build_fleet",
    "check_mixing",
    "cluster_sizes",
    "describe_bias",
    "describe_short_trace",
    "read_devices",
    "read_trace",
    "target_weights",
    "zeta",
]

_NAMES = {
    "availability": "Availability",
    "backhaul": "Backhaul TopologyParameters build_backhaul check_mixing describe_bias target_weights zeta",
    "conditions": "Conditions RandomConditions",
    "device_classes": "DEVICE_CLASSES DeviceClass HardwareConditions",
    "device_table": "read_devices",
    "fleet": "Fleet FleetParameters build_fleet cluster_sizes",
    "traces": "TraceConditions TraceParameters describe_short_trace read_trace",
}

_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

if not TYPE_CHECKING:
    # Hidden from type checkers, which would otherwise accept any name.
    __getattr__, __dir__ = import_on_use(__name__, _MODULES)
