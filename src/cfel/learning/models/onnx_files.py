"""Models as ONNX files, for runtimes without torch. Needs the extra `cfel[onnx]`.

The graph is the network in evaluation mode: scaled inputs (any number of samples) in, scores out. Files are
only written, not read.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import torch

from cfel.durable import replacing
from cfel.errors import InputError, StorageError
from cfel.extras import MissingExtraError, install_command
from cfel.learning.models.flat import FlatModel, FlatModule

NEEDED = ("onnx", "onnxscript")


def save_onnx(path: Path, model: FlatModel, flat: FlatModule, input_shape: tuple[int, ...]) -> None:
    """Writes a model to an ONNX file, which appears only when it is complete.

    Args:
        path: the file to write.
        model: the values.
        flat: a module of the same task; its values change to the model's.
        input_shape: of one sample.

    Raises:
        InputError: a package is missing, the module cannot be expressed, or the file cannot be written.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise MissingExtraError(f"{path}: ONNX needs {' and '.join(missing)}: {install_command(missing[0])}")
    if model.parameters.numel() < flat.parameters.numel():
        raise InputError(
            f"{path}: a part of the model is personal (model.personal), and ONNX needs a whole model; name "
            "the device with --device, or write the shared part as .safetensors"
        )
    flat.load(model)
    program = _export_program(flat, input_shape, path)
    try:
        with replacing(path) as temporary:
            program.save(str(temporary))
    except StorageError as error:
        raise InputError(str(error)) from error


def _export_program(flat: FlatModule, input_shape: tuple[int, ...], path: Path) -> torch.onnx.ONNXProgram:
    with _silence_exporter():
        try:
            program = torch.onnx.export(
                flat.module.eval(),
                (torch.zeros(2, *input_shape),),
                input_names=["inputs"],
                output_names=["scores"],
                dynamic_shapes=({0: torch.export.Dim("samples")},),
                dynamo=True,
                verbose=False,
            )
        except torch.onnx.OnnxExporterError as error:
            raise InputError(f"{path}: the model cannot be expressed in ONNX: {error}") from error
    assert program is not None  # noqa: S101 — it is None only when torch writes the file itself
    return program


@contextmanager
def _silence_exporter() -> Iterator[None]:
    """Hides the exporter's messages about packages that are not needed, and about its own deprecations."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
