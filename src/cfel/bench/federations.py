"""What `cfel bench deployment` runs: experiments for federations of processes, with data made up on the spot.

Data and scheme are named in the experiment file like those of anybody else, so every process finds them.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cfel.bench.settings import LEAF, pinned_scheme, random_data
from cfel.control.scheme import Scheme, SchemeParameters
from cfel.experiment import Experiment, parse_experiment
from cfel.learning.data.dataset import DataSet

LEAF_DEVICES = 8
_HERE = "cfel.bench.federations"
_PATIENT: Mapping[str, Any] = {
    # 72 processes on two cores are slow to join, and heartbeats late.
    "join_seconds": 300.0,
    "election_seconds": 5.0,
    "gone_seconds": 120.0,
    "round_seconds": 300.0,
    "gossip_seconds": 60.0,
}


def leaf_data(_: Path | None) -> DataSet:
    """Random images of FEMNIST's shape, 250 for each device."""
    return random_data(replace(LEAF, devices=LEAF_DEVICES))


def pinned(_: SchemeParameters) -> Scheme:
    """Every step is taken, a tenth is sent."""
    return pinned_scheme()


def leaf_federation(edge_rounds: int, local_steps: int) -> Experiment:
    """One edge server with 8 devices that train LEAF's CNN, two global rounds; nothing is thrown away."""
    return parse_experiment(
        {
            "preset": "none",
            "name": "leaf",
            "rounds": {"global": 2, "edge": edge_rounds, "local": local_steps},
            "fleet": {"devices": LEAF_DEVICES, "clusters": 1},
            "topology": {"kind": "complete"},
            "data": {"name": f"{_HERE}:leaf_data", "partition": "iid", "batch": LEAF.batch},
            "model": {"name": LEAF.model},
            "local": {"learning_rate": 0.01},
            "scheme": {"name": f"{_HERE}:pinned"},
            "simulation": {"evaluate_samples": 10, "checkpoint_every": 0},
            "deployment": {**_PATIENT, "conditions": "measured"},
        }
    )


def small_federation(devices: int, clusters: int, rounds: int) -> Experiment:
    """The digits and a small model on many processes, or for many rounds."""
    return parse_experiment(
        {
            "name": "small",
            "rounds": {"global": rounds, "edge": 1, "local": 2},
            "fleet": {"devices": devices, "clusters": clusters},
            "topology": {"kind": "ring" if clusters > 2 else "complete"},
            "data": {"partition": "iid"},
            "simulation": {"checkpoint_every": 0},
            "deployment": _PATIENT,
        }
    )
