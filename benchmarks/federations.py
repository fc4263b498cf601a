"""The experiments of the benchmarks `deployment` and `resilience`.

Data, models and schemes of their own are user-defined functions in the experiment file, so that every process
finds them.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from benchmarks.breakdown import watch_this_node
from benchmarks.settings import ENDLESS, LEAF, build_pinned_scheme, make_random_data
from cfel.control.scheme import Scheme, SchemeParameters
from cfel.experiment import Experiment, parse_experiment
from cfel.learning.data.dataset import DataSet
from cfel.learning.models.builders import Perceptron
from cfel.plugins import ANY_CODE

LEAF_DEVICES = 8
DEVICES, CLUSTERS = 6, 3
"""The federation in which nodes are killed, or have a slow link."""
_MODULE = __name__
# With it, rounds of the small model take about 0.7 s.
_TIME_SCALE = 0.002
_LONG_TIMEOUTS: Mapping[str, Any] = {
    # 72 processes on two cores join slowly, and their heartbeats are late.
    "join_seconds": 300.0,
    "election_seconds": 5.0,
    "gone_seconds": 120.0,
    "round_seconds": 300.0,
    "gossip_seconds": 60.0,
}


def load_leaf_data(_: Path | None) -> DataSet:
    """Random images of FEMNIST's shape, 250 for each device."""
    watch_this_node()
    return make_random_data(replace(LEAF, devices=LEAF_DEVICES))


def build_scheme(_: SchemeParameters) -> Scheme:
    """A scheme with ρ = 1 and θ = 0.1."""
    return build_pinned_scheme()


def build_leaf_experiment(edge_rounds: int, local_steps: int) -> Experiment:
    """One edge server with 8 devices that train LEAF's CNN for two global rounds."""
    return parse_experiment(
        {
            "preset": "none",
            "name": "leaf",
            "rounds": {"global": 2, "edge": edge_rounds, "local": local_steps},
            "fleet": {"devices": LEAF_DEVICES, "clusters": 1},
            "topology": {"kind": "complete"},
            "data": {"name": f"{_MODULE}:load_leaf_data", "partition": "iid", "batch": LEAF.batch},
            "model": {"name": LEAF.model},
            "local": {"learning_rate": 0.01},
            "scheme": {"name": f"{_MODULE}:build_scheme"},
            "simulation": {"evaluate_samples": 10, "checkpoint_every": 0},
            "deployment": {**_LONG_TIMEOUTS, "conditions": "measured"},
        },
        ANY_CODE,
    )


def build_small_experiment(devices: int, clusters: int, rounds: int) -> Experiment:
    """The digits data set with a small model, for many processes or many rounds."""
    return parse_experiment(
        {
            "preset": "demo",
            "name": "small",
            "rounds": {"global": rounds, "edge": 1, "local": 2},
            "fleet": {"devices": devices, "clusters": clusters},
            "topology": {"kind": "ring" if clusters > 2 else "complete"},
            "data": {"partition": "iid"},
            "simulation": {"checkpoint_every": 0},
            "deployment": _LONG_TIMEOUTS,
        }
    )


def build_megabyte_model(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A perceptron of 249,985 parameters for digits, which take 1.0 MB."""
    return Perceptron(math.prod(input_shape), classes, hidden=3333)


def build_slow_link_experiment(rounds: int, round_seconds: float) -> Experiment:
    """A model of 1 MB, with deadlines that a slow link can meet."""
    return _build_faulty_experiment(
        {
            "rounds": {"global": rounds, "edge": 1, "local": 2},
            "model": {"name": f"{_MODULE}:build_megabyte_model"},
            "deployment": {"round_seconds": round_seconds, "linger_seconds": 0.0},
        }
    )


def build_kill_experiment() -> Experiment:
    """A small model and rounds of about 0.7 s without an end, with the default deadlines."""
    return _build_faulty_experiment(
        {
            "rounds": {"global": ENDLESS, "edge": 1, "local": 2},
            "simulation": {"evaluate_every": ENDLESS, "checkpoint_every": 0},
            "deployment": {"time_scale": _TIME_SCALE},
        }
    )


def _build_faulty_experiment(changes: Mapping[str, Any]) -> Experiment:
    return parse_experiment(
        {
            # Without a budget, which would be computed by a dry run of all rounds.
            "preset": "none",
            "name": "faults",
            "fleet": {"devices": DEVICES, "clusters": CLUSTERS},
            "topology": {"kind": "complete"},
            "data": {"partition": "iid"},
            "scheme": {"name": f"{_MODULE}:build_scheme"},
            **changes,
        },
        ANY_CODE,
    )
