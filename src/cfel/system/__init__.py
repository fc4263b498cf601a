"""The system: devices, clusters, the backhaul between edge servers, and conditions that change over time.

The names below are imported on first use, so that planning a round does not load graphs and traces.
"""

from typing import TYPE_CHECKING

from cfel.extras import import_on_use

if TYPE_CHECKING:
    from cfel.system.availability import (
        Availability,
        AvailabilityTrace,
        Participation,
        is_exhausted,
        joules_left,
        read_availability,
    )
    from cfel.system.backhaul import (
        Backhaul,
        TopologyParameters,
        build_backhaul,
        build_graph,
        check_gossip_step,
        check_mixing,
        describe_bias,
        live_metropolis_weights,
        metropolis_weights,
        read_edges,
        retarget_backhaul,
        target_weights,
        zeta,
    )
    from cfel.system.conditions import ConditionModel, Conditions, RandomConditions
    from cfel.system.device_classes import DEVICE_CLASSES, DeviceClass, HardwareConditions
    from cfel.system.fleet import ConditionParameters, Fleet, FleetParameters, build_fleet, cluster_sizes
    from cfel.system.traces import (
        DeviceTable,
        TraceConditions,
        TraceParameters,
        describe_short_trace,
        read_devices,
        read_trace,
    )

__all__ = [
    "DEVICE_CLASSES",
    "Availability",
    "AvailabilityTrace",
    "Backhaul",
    "ConditionModel",
    "ConditionParameters",
    "Conditions",
    "DeviceClass",
    "DeviceTable",
    "Fleet",
    "FleetParameters",
    "HardwareConditions",
    "Participation",
    "RandomConditions",
    "TopologyParameters",
    "TraceConditions",
    "TraceParameters",
    "build_backhaul",
    "build_fleet",
    "build_graph",
    "check_gossip_step",
    "check_mixing",
    "cluster_sizes",
    "describe_bias",
    "describe_short_trace",
    "is_exhausted",
    "joules_left",
    "live_metropolis_weights",
    "metropolis_weights",
    "read_availability",
    "read_devices",
    "read_edges",
    "read_trace",
    "retarget_backhaul",
    "target_weights",
    "zeta",
]

_MODULES = {
    "Availability": "availability",
    "AvailabilityTrace": "availability",
    "Backhaul": "backhaul",
    "ConditionModel": "conditions",
    "ConditionParameters": "fleet",
    "Conditions": "conditions",
    "DEVICE_CLASSES": "device_classes",
    "DeviceClass": "device_classes",
    "DeviceTable": "traces",
    "Fleet": "fleet",
    "FleetParameters": "fleet",
    "HardwareConditions": "device_classes",
    "Participation": "availability",
    "RandomConditions": "conditions",
    "TopologyParameters": "backhaul",
    "TraceConditions": "traces",
    "TraceParameters": "traces",
    "build_backhaul": "backhaul",
    "build_fleet": "fleet",
    "build_graph": "backhaul",
    "check_gossip_step": "backhaul",
    "check_mixing": "backhaul",
    "cluster_sizes": "fleet",
    "describe_bias": "backhaul",
    "describe_short_trace": "traces",
    "is_exhausted": "availability",
    "joules_left": "availability",
    "live_metropolis_weights": "backhaul",
    "metropolis_weights": "backhaul",
    "read_availability": "availability",
    "read_devices": "traces",
    "read_edges": "backhaul",
    "read_trace": "traces",
    "retarget_backhaul": "backhaul",
    "target_weights": "backhaul",
    "zeta": "backhaul",
}

if not TYPE_CHECKING:
    # Hidden from type checkers, which would otherwise accept any name.
    __getattr__, __dir__ = import_on_use(__name__, _MODULES)
