"""The experiments of `cfel bench deployment`, with random data.

Data and scheme are user-defined functions in the experiment file, so that every process finds them.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cfel.bench.settings import LEAF, build_pinned_scheme, make_random_data
from cfel.control.scheme import Scheme, SchemeParameters
from cfel.experiment import Experiment, parse_experiment
from cfel.learning.data.dataset import DataSet
from cfel.plugins import ANY_CODE

LEAF_DEVICES = 8
_MODULE = "cfel.bench.federations"
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
            "name": "small",
            "rounds": {"global": rounds, "edge": 1, "local": 2},
            "fleet": {"devices": devices, "clusters": clusters},
            "topology": {"kind": "ring" if clusters > 2 else "complete"},
            "data": {"partition": "iid"},
            "simulation": {"checkpoint_every": 0},
            "deployment": _LONG_TIMEOUTS,
        }
    )
