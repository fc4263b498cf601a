"""Uses a trained model: an exported file, or the model of a run directory, on a file of samples."""

import zipfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cfel.api.export import load_module
from cfel.arrays import FloatArray, IntArray
from cfel.durable import MAX_BYTES, read_bytes
from cfel.errors import InputError, StorageError
from cfel.experiment import load_directory_experiment
from cfel.learning.models.builders import model_builder
from cfel.learning.models.files import ModelForm, read_model_file
from cfel.plugins import BUILT_IN_ONLY, CodePolicy
from cfel.runlog import RunDirectory

_BATCH = 256
_NAMES = ("inputs", "images", "x")
"""Under these names the samples of an .npz file are looked for, if it holds several arrays."""


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """What a model makes of samples."""

    outputs: FloatArray  # samples × what the model returns
    # The class with the highest score, per sample; None if outputs are no scores of classes.
    labels: IntArray | None = None
    shares: FloatArray | None = None  # its probability by softmax, per sample; None likewise


def predict(
    source: Path, samples: Path, code: CodePolicy = BUILT_IN_ONLY, device: int | None = None
) -> Prediction:
    """Runs a model on samples.

    The source is a file of `cfel export` (.safetensors) or a run directory; samples are an .npy file, or an
    .npz file with one array or one named "inputs", raw: they are scaled here.
    """
    if source.is_dir():
        run = RunDirectory.open(source)
        experiment = load_directory_experiment(source, code=code)
        form = ModelForm.describe(experiment.load_task(), experiment.model.name)
        module = load_module(run, experiment, device=device)
    elif device is not None:
        raise InputError("device: only for a run directory; a file holds one model")
    else:
        module, form = _build_from_file(source, code)
    return _run_model(module, form, _fit_samples(samples, _read_samples(samples), form))


def _build_from_file(path: Path, code: CodePolicy) -> tuple[nn.Module, ModelForm]:
    tensors, form = read_model_file(path)
    if form is None:
        raise InputError(f"{path}: does not say what goes into the model; write it with `cfel export`")
    if not form.model:
        raise InputError(f"{path}: its model belongs to a user-defined task; give the run directory instead")
    module = model_builder(form.model, code)(form.input_shape, form.classes)
    try:
        lacking, unknown = module.load_state_dict(tensors, strict=False)
    except RuntimeError as error:
        raise InputError(f"{path}: does not fit its model {form.model!r}: {error}") from error
    if lacking or unknown:
        raise InputError(
            f"{path}: tensor {[*lacking, *unknown][0]!r} is missing or too many; a file with the shared part "
            "of a personal model cannot be used alone"
        )
    return module.eval(), form


def _read_samples(path: Path) -> NDArray[np.generic]:
    try:
        content = BytesIO(read_bytes(path, follow_links=True))
        return _choose_array(content) if path.suffix == ".npz" else _load(content)
    except StorageError as error:
        raise InputError(str(error)) from error
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile, MemoryError) as error:
        raise InputError(f"{path}: cannot be read as an array of NumPy: {error}") from error


def _choose_array(content: BytesIO) -> NDArray[np.generic]:
    """The only array of an archive, or the one whose name says that it holds samples."""
    with zipfile.ZipFile(content) as archive:
        if sum(each.file_size for each in archive.infolist()) > MAX_BYTES:
            raise InputError(f"it holds more than {MAX_BYTES:,} bytes")
        names = [each.removesuffix(".npy") for each in archive.namelist()]
        found = names if len(names) == 1 else [name for name in names if name in _NAMES]
        if len(found) != 1:
            raise InputError(f"it holds {', '.join(names)}; must hold one array, or one named inputs")
        return _load(BytesIO(archive.read(f"{found[0]}.npy")))


def _load(content: BytesIO) -> NDArray[np.generic]:
    # No pickles: the file may be anybody's.
    return np.asarray(np.load(content, allow_pickle=False))


def _fit_samples(path: Path, samples: NDArray[np.generic], form: ModelForm) -> Tensor:
    """Samples of the model's type and shape; a single one may come without the first dimension."""
    if samples.shape == form.input_shape:
        samples = samples[np.newaxis]
    if samples.shape[1:] != form.input_shape or not len(samples):
        raise InputError(f"{path}: samples of shape {samples.shape[1:]}, the model takes {form.input_shape}")
    wanted = np.dtype(form.dtype)
    # Bytes are scaled, other numbers are not: taking one for the other would give nonsense without an error.
    if samples.dtype.kind not in "fiu" or (samples.dtype == np.uint8) != (wanted == np.uint8):
        raise InputError(f"{path}: samples are {samples.dtype}, the model was trained on {wanted}")
    return torch.from_numpy(np.ascontiguousarray(samples.astype(wanted)))


def _run_model(module: nn.Module, form: ModelForm, samples: Tensor) -> Prediction:
    with torch.no_grad():
        outputs = torch.cat([module(form.scale(part)) for part in torch.split(samples, _BATCH)]).double()
    found = outputs.numpy()
    if not form.labels:
        return Prediction(found)
    shares = torch.softmax(outputs, 1)
    best = shares.argmax(1)
    return Prediction(found, best.numpy(), shares.gather(1, best.unsqueeze(1)).squeeze(1).numpy())
