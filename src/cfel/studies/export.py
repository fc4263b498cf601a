"""The trained model out of a run directory, into a file that other programs read."""

from pathlib import Path

import numpy as np

from cfel.errors import InputError, RunDirectoryError, unknown_name
from cfel.experiment import load_experiment
from cfel.learning.files import save_model
from cfel.learning.flat import FlatModel
from cfel.learning.onnx_files import save_onnx
from cfel.learning.roles import weighted_model
from cfel.runlog import RunDirectory
from cfel.simulation.state import edge_models

FORMATS = (".onnx", ".safetensors")


def export_model(directory: Path, to: Path, edge: int | None = None) -> int:
    """Writes the model of a run's last checkpoint.

    Args:
        directory: the run directory.
        to: the file; its ending names the format.
        edge: an edge server's own model; None for the consensus model.

    Returns:
        The global round the model comes from.

    Raises:
        InputError: the format or the edge server is unknown, or the file cannot be written.
        RunDirectoryError: there is no run, or no checkpoint yet.
    """
    if to.suffix not in FORMATS:
        raise InputError(unknown_name("--to: ending", to.suffix, FORMATS))
    number, model = trained_model(directory, edge)
    task = load_experiment(directory / "experiment.toml").task()
    if to.suffix == ".onnx":
        save_onnx(to, model, task.build(), task.data.input_shape)
    else:
        save_model(to, model, task.build())
    return number


def trained_model(directory: Path, edge: int | None = None) -> tuple[int, FlatModel]:
    """The last checkpoint's round, and one edge model or the mean of all, every device counting alike."""
    run = RunDirectory.open(directory)
    checkpoint = run.checkpoint()
    if checkpoint is None:
        raise RunDirectoryError(f"{directory}: the run has no checkpoint yet, so there is no model to export")
    sizes = np.bincount(run.fleet().cluster)
    models = edge_models(checkpoint, len(sizes))
    if edge is None:
        shares = {i: float(share) for i, share in enumerate(sizes / sizes.sum())}
        return checkpoint.round, weighted_model(dict(enumerate(models)), shares)
    if not 0 <= edge < len(models):
        raise InputError(f"--edge {edge}: the run has edge servers 0 to {len(models) - 1}")
    return checkpoint.round, models[edge]
