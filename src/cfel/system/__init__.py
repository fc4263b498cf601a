"""The system: devices, clusters, the backhaul between edge servers, and conditions that change over time.

The names below are imported on first use, so that planning a round does not load graphs and traces.
"""

from typing import TYPE_CHECKING

from cfel.extras import import_on_use

if TYPE_CHECKING:
    from cfel.system.availability import Availability, is_exhausted, joules_left
    from cfel.system.availability_trace import AvailabilityTrace, read_availability
    from cfel.system.conditions import ConditionModel, Conditions, RandomConditions
    from cfel.system.device_table import DeviceTable, read_devices
    from cfel.system.devices import DEVICE_CLASSES, DeviceClass
    from cfel.system.fleet import ConditionParameters, Fleet, FleetParameters, build_fleet, cluster_sizes
    from cfel.system.hardware import HardwareConditions
    from cfel.system.mixing import (
        Backhaul,
        build_backhaul,
        check_gossip_step,
        check_mixing,
        describe_bias,
        live_metropolis_weights,
        metropolis_weights,
        retarget_backhaul,
        target_weights,
        zeta,
    )
    from cfel.system.participation import Participation
    from cfel.system.topology import TopologyParameters, build_graph, read_edges
    from cfel.system.traces import TraceConditions, TraceParameters, describe_short_trace, read_trace

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
    "AvailabilityTrace": "availability_trace",
    "Backhaul": "mixing",
    "ConditionModel": "conditions",
    "ConditionParameters": "fleet",
    "Conditions": "conditions",
    "DEVICE_CLASSES": "devices",
    "DeviceClass": "devices",
    "DeviceTable": "device_table",
    "Fleet": "fleet",
    "FleetParameters": "fleet",
    "HardwareConditions": "hardware",
    "Participation": "participation",
    "RandomConditions": "conditions",
    "TopologyParameters": "topology",
    "TraceConditions": "traces",
    "TraceParameters": "traces",
    "build_backhaul": "mixing",
    "build_fleet": "fleet",
    "build_graph": "topology",
    "check_gossip_step": "mixing",
    "check_mixing": "mixing",
    "cluster_sizes": "fleet",
    "describe_bias": "mixing",
    "describe_short_trace": "traces",
    "is_exhausted": "availability",
    "joules_left": "availability",
    "live_metropolis_weights": "mixing",
    "metropolis_weights": "mixing",
    "read_availability": "availability_trace",
    "read_devices": "device_table",
    "read_edges": "topology",
    "read_trace": "traces",
    "retarget_backhaul": "mixing",
    "target_weights": "mixing",
    "zeta": "mixing",
}

if not TYPE_CHECKING:
    # Hidden from type checkers, which would otherwise accept any name.
    __getattr__, __dir__ = import_on_use(__name__, _MODULES)
