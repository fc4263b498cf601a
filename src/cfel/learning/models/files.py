"""Models as files: safetensors to keep and load, ONNX for runtimes without torch.

A safetensors file holds one tensor per parameter and buffer, trained or not, under its name in the module, so
that it loads into the plain torch module with `load_state_dict(strict=False)`. Its metadata says what goes
into the module and what comes out (`ModelForm`), so that the file is enough to use it. Nothing is pickled. An
ONNX file, which needs the extra `cfel[onnx]`, is the network in evaluation mode: scaled inputs (any number of
samples) in, scores out; it is only written, not read. Checkpoints of a run are in `runlog`.
"""

import json
import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from cfel import validation
from cfel.durable import read_bytes, replacing
from cfel.errors import InputError, StorageError, unknown_name
from cfel.extras import MissingExtraError, install_command
from cfel.learning.data.dataset import Normalisation, scale_inputs
from cfel.learning.models.flat import FlatModel, FlatModule, Slot
from cfel.learning.task import Task, accuracy
from cfel.metric import describe_metric

_DTYPES = ("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
_MOST_NUMBERS = 10**7
"""In one sample, or classes: a picture of 1,800 × 1,800 pixels in three colours has as many."""


@dataclass(frozen=True, slots=True)
class ModelForm:
    """How to build a model, what to feed it, and what it returns."""

    model: str  # name of the builder; empty if the model belongs to a user-defined task
    input_shape: tuple[int, ...]  # of one sample
    classes: int  # number of classes, or of outputs
    dtype: str  # of samples, in NumPy's words; "uint8" is scaled and normalised, others are used as they are
    normalisation: Normalisation | None  # for uint8, or None
    labels: bool  # whether outputs are the scores of classes

    def __post_init__(self) -> None:
        # A file may be anybody's, and a builder takes as much memory as these say.
        if self.dtype not in _DTYPES:
            raise InputError(unknown_name("dtype", self.dtype, _DTYPES))
        validation.check_whole("classes", self.classes, least=1, most=_MOST_NUMBERS)
        for size in self.input_shape:
            validation.check_whole("input_shape", size, least=1, most=_MOST_NUMBERS)
        validation.check_whole("input_shape", math.prod(self.input_shape), least=1, most=_MOST_NUMBERS)

    @classmethod
    def describe(cls, task: Task, model: str) -> "ModelForm":
        data = task.data
        dtype = str(data.train_inputs.dtype).removeprefix("torch.")
        labels = describe_metric(task.metric).function is accuracy
        return cls(model, data.input_shape, data.classes, dtype, data.normalisation, labels)

    def scale(self, samples: Tensor) -> Tensor:
        """Samples as the model takes them."""
        return scale_inputs(samples, self.normalisation)


_METADATA = "cfel"


def read_model_file(path: Path) -> tuple[dict[str, Tensor], ModelForm | None]:
    """All tensors of a safetensors file by name, and its form; None if it was not written with one."""
    try:
        # Not the library's own reader of files, which would wait for a pipe.
        content = read_bytes(path, max_bytes=None, follow_links=True)
        tensors = load(content)
        size = int.from_bytes(content[:8], "little")
        given = json.loads(content[8 : 8 + size]).get("__metadata__", {}).get(_METADATA)
        return tensors, None if given is None else msgspec.json.decode(given, type=ModelForm)
    except StorageError as error:
        raise InputError(str(error)) from error
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise InputError(f"{path}: cannot be read as safetensors: {error}") from error


def named_tensors(model: FlatModel, flat: FlatModule) -> dict[str, Tensor]:
    """A model's parameters and buffers by name, contiguous; frozen ones as the module has them.

    Of a model that is the shared part only, the personal tensors are missing.
    """
    parts = ((flat.parameter_slots, model.parameters), (flat.buffer_slots, model.buffers))
    named = {
        slot.name: slot.view(vector).contiguous()
        for slots, vector in parts
        for slot in slots
        if slot.stop <= vector.numel()
    }
    # Copied, as the format does not allow tensors that share memory.
    return named | {name: each.clone() for name, each in flat.read_fixed().items()}


def save_model(path: Path, model: FlatModel, flat: FlatModule, form: ModelForm | None = None) -> None:
    """Writes a model to a safetensors file, which appears only when it is complete."""
    try:
        with replacing(path) as temporary:
            temporary.write_bytes(encode_model(model, flat, form))
    except StorageError as error:
        raise InputError(str(error)) from error
    except SafetensorError as error:
        raise InputError(f"cannot write {path}: {error}") from error


def encode_model(model: FlatModel, flat: FlatModule, form: ModelForm | None = None) -> bytes:
    metadata = {"format": "pt"} | ({} if form is None else {_METADATA: msgspec.json.encode(form).decode()})
    return _sort_metadata(save(named_tensors(model, flat), metadata))


def _sort_metadata(content: bytes) -> bytes:
    """The same file with its metadata in order: safetensors writes them in a random one."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    return len(text).to_bytes(8, "little") + text + content[8 + size :]


def load_model(path: Path, flat: FlatModule) -> FlatModel:
    """Reads a model from a safetensors file; `flat` has names and shapes, and takes on the file's values."""
    tensors, _ = read_model_file(path)
    fixed = flat.read_fixed()
    known = {slot.name for slot in (*flat.parameter_slots, *flat.buffer_slots)} | fixed.keys()
    unknown = sorted(n for n, t in tensors.items() if n not in known and t.is_floating_point())
    if unknown:
        raise InputError(f"{path}: tensor {unknown[0]!r} is not part of the model")
    for name, value in fixed.items():
        if value.is_floating_point() and name in tensors and not torch.equal(tensors[name], value.cpu()):
            raise InputError(
                f"{path}: tensor {name!r} is frozen and differs from the model's; load the frozen ones where "
                "the model is built"
            )
    parts = (
        (flat.parameter_slots, flat.parameters, flat.shared.parameters),
        (flat.buffer_slots, flat.buffers, flat.shared.buffers),
    )
    for slots, vector, shared in parts:
        for slot in slots:
            # A file of edge models has no personal part: devices begin it anew.
            if slot.start >= shared and slot.name not in tensors:
                continue
            slot.view(vector).copy_(_find_tensor(tensors, slot, path))
    return flat.read()


def _find_tensor(tensors: dict[str, Tensor], slot: Slot, path: Path) -> Tensor:
    tensor = tensors.get(slot.name)
    if tensor is None:
        raise InputError(f"{path}: tensor {slot.name!r} is missing")
    if tuple(tensor.shape) != slot.shape or not tensor.is_floating_point():
        raise InputError(
            f"{path}: tensor {slot.name!r} is {tensor.dtype} of shape {tuple(tensor.shape)}, "
            f"the model has shape {slot.shape}"
        )
    return tensor


NEEDED = ("onnx", "onnxscript")


def save_onnx(path: Path, model: FlatModel, flat: FlatModule, input_shape: tuple[int, ...]) -> None:
    """Writes a model to an ONNX file, which appears only when it is complete; `flat` takes on its values."""
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


def _export_program(flat: FlatModule, input_shape: tuple[int, ...], path: Path) -> "torch.onnx.ONNXProgram":
    # The name is quoted, because looking it up loads the exporter, in every process.
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
