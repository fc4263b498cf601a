"""An experiment: one TOML file that says everything about a run, what it means, and the World built from it.

The parameters of each part are defined beside the code they configure; here their tables are found, presets
filled in, and unknown keys refused.
"""

from cfel.experiment.experiment import Experiment
from cfel.experiment.files import (
    PRESETS,
    experiment_toml,
    load_directory_experiment,
    load_experiment,
    parse_experiment,
    preset_experiment,
    shared_parts,
)
from cfel.experiment.sections import BudgetParameters, CompressionParameters, DataParameters, ModelParameters

__all__ = [
    "PRESETS",
    "BudgetParameters",
    "CompressionParameters",
    "DataParameters",
    "Experiment",
    "ModelParameters",
    "experiment_toml",
    "load_directory_experiment",
    "load_experiment",
    "parse_experiment",
    "preset_experiment",
    "shared_parts",
]
