"""Experiments with algorithms and schedules, for tests that every driver gives the same bits."""

from collections.abc import Mapping
from typing import Any

SECTIONS: Mapping[str, Mapping[str, Any]] = {
    "adam": {"local": {"algorithm": "adam", "learning_rate": 0.002, "clip_gradient": 1.0}},
    "fedprox": {"local": {"algorithm": "fedprox", "options": {"mu": 0.1}, "nesterov": True}},
    "scaffold": {"local": {"algorithm": "scaffold", "momentum": 0.0}},
    "edge_servers": {
        "local": {"algorithm": "feddyn"},
        "aggregation": {"optimiser": "fedadam", "learning_rate": 0.02, "average": 0.5},
    },
    "own_rules": {
        "aggregation": {"kind": "examples.custom_aggregation:agreed", "options": {"least": 0.9}},
        "data": {"partition": "examples.custom_partition:by_ink"},
    },
    "personal": {"model": {"personal": ["dense2.*"]}, "local": {"estimator": "fresh"}},
    "ditto": {"local": {"algorithm": "ditto", "options": {"lambda": 1.0}}},
    "shared_momentum": {
        "local": {"algorithm": "shared_momentum"},
        "scheme": {"name": "hcef_plus", "steps": "small_batches"},
    },
    "fedbalancer": {"local": {"algorithm": "fedbalancer", "options": {"share": 0.4, "shared": True}}},
    "last_layers": {"scheme": {"name": "mll_sgd", "steps": "last_layers"}},
    "schedule": {
        "local": {"schedule": "cosine", "schedule_by": "budget", "warmup": 0.3},
        "budget": {"share_of_cef": 0.6},
    },
}
