"""Experiments: one TOML file describes a run completely, and a `World` is built from it.

Each package defines the parameters of its own section. This one reads the tables, fills in presets and
rejects unknown keys.
"""

from cfel.experiment.experiment import (
    Experiment,
    digest_shared_parts,
    experiment_toml,
    load_directory_experiment,
    load_experiment,
    parse_experiment,
    preset_experiment,
)
from cfel.experiment.sections import (
    PRESETS,
    BudgetParameters,
    CompressionParameters,
    ModelParameters,
)
from cfel.learning.data.partition import DataParameters

__all__ = [
    "PRESETS",
    "BudgetParameters",
    "CompressionParameters",
    "DataParameters",
    "Experiment",
    "ModelParameters",
    "digest_shared_parts",
    "experiment_toml",
    "load_directory_experiment",
    "load_experiment",
    "parse_experiment",
    "preset_experiment",
]
