"""The system: devices, clusters, the backhaul between edge servers, and conditions that change over time."""

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
