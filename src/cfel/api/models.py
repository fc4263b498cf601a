"""Trained models: exported from a run directory to a file for other programs, and run on samples."""

import time
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cfel.arrays import FloatArray, IntArray
from cfel.durable import MAX_BYTES, check_directory, read_bytes, translate_parse_errors
from cfel.errors import InputError, RunDirectoryError, StorageError, unknown_name
from cfel.experiment import Experiment, load_directory_experiment
from cfel.learning.device_messages import DeviceState
from cfel.learning.edge import mean_model, read_edge_models
from cfel.learning.local.algorithms import build_algorithm
from cfel.learning.models.builders import model_builder
from cfel.learning.models.files import ModelForm, read_model_file, save_model, save_onnx
from cfel.learning.models.flat import FlatModel
from cfel.learning.task import Task, initial_model
from cfel.membership import Membership, merge_losses
from cfel.plugins import BUILT_IN_ONLY, CodePolicy
from cfel.runlog import RunDirectory
from cfel.simulation.loop import find_own_model

FORMATS = (".onnx", ".safetensors")
# A running edge server replaces its model files between two rounds: reading is tried again for half a second.
_MAX_ATTEMPTS = 5
_RETRY_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """A model of a run."""

    round: int  # the global round it is of
    whose: str  # the edge server or device that has it, in words
    model: FlatModel


@dataclass(frozen=True, slots=True)
class _EdgeModels:
    """The models of a run's edge servers; `alone` if the directory belongs to one of them."""

    round: int
    models: Mapping[int, FlatModel]
    sizes: IntArray  # devices of every edge server
    alone: bool = False


def export_model(
    directory: Path,
    to: Path,
    edge: int | None = None,
    code: CodePolicy = BUILT_IN_ONLY,
    device: int | None = None,
) -> TrainedModel:
    """Writes the model of a run's last checkpoint, or the current model of a deployment.

    The suffix of `to` selects the format. It is the consensus model, unless an edge server or a device is
    named.
    """
    if to.suffix not in FORMATS:
        raise InputError(unknown_name("--to: suffix", to.suffix, FORMATS))
    run = RunDirectory.open(directory)
    experiment = load_directory_experiment(directory, code=code)
    task = experiment.load_task()
    found = _load_model(run, experiment, task, edge, device)
    if to.suffix == ".onnx":
        save_onnx(to, found.model, task.build(), task.data.input_shape)
    else:
        name = experiment.model.name if experiment.data.task is None else ""
        save_model(to, found.model, task.build(), ModelForm.describe(task, name))
    return found


def replay_experiment(run: RunDirectory, experiment: Experiment) -> Experiment:
    """The experiment with the changes and losses in the log of a federation that ran it."""
    records = run.records()
    decided = {record.round + 1 for record in records}
    kept = (each for each in experiment.fleet.changes if each.round not in decided)
    logged = (change for record in records for change in record.changes)
    changes = tuple(sorted((*kept, *logged), key=lambda each: each.round))
    losses = merge_losses(loss for record in records for loss in record.losses)
    return replace(experiment, fleet=replace(experiment.fleet, changes=changes, losses=losses))


def find_membership(run: RunDirectory, experiment: Experiment, rounds_done: int) -> Membership:
    """Who belonged to the fleet in the last of so many rounds."""
    each = replay_experiment(run, experiment).fleet.list_memberships()
    return [membership for first, membership in each if first < max(rounds_done, 1)][-1]


def load_module(
    run: RunDirectory, experiment: Experiment, edge: int | None = None, device: int | None = None
) -> nn.Module:
    """A trained model as a module of its task, in evaluation mode."""
    task = experiment.load_task()
    flat = task.build()
    if task.personal and device is None:
        raise InputError("a part of the model is personal (model.personal): name the device, as in device=0")
    flat.load(_load_model(run, experiment, task, edge, device).model)
    return flat.module.eval()


def _load_model(
    run: RunDirectory, experiment: Experiment, task: Task, edge: int | None, device: int | None
) -> TrainedModel:
    """The consensus model of the last global round, an edge model, or the model that a device keeps."""
    if device is None:
        return _load_shared_model(run, experiment, task, edge)
    checkpoint = run.checkpoint()
    if checkpoint is None:
        raise RunDirectoryError(f"{run.path}: no checkpoint; in a deployment, only devices have their models")
    members = find_membership(run, experiment, checkpoint.round)
    if device not in members.devices:
        raise InputError(f"device = {device}: the run has no such device")
    name = build_algorithm(experiment.local, experiment.code).personal_model
    if name is None and not task.personal:
        raise InputError("device: devices keep no models of their own in this run; see model.personal")
    shared = _load_shared_model(run, experiment, task, members.edge_of[device])
    prefix = f"device/{device}/"
    memory = {
        key.removeprefix(prefix): torch.from_numpy(np.array(each))
        for key, each in checkpoint.tensors.items()
        if key.startswith(prefix)
    }
    own = find_own_model(shared.model, DeviceState(memory), name)
    return TrainedModel(shared.round, f"model of device {device}", own)


def _load_shared_model(
    run: RunDirectory, experiment: Experiment, task: Task, edge: int | None
) -> TrainedModel:
    """The consensus model, with clusters weighted by size, or the model of one edge server.

    Where edge servers average their models over rounds, these are the averages.
    """
    rules = experiment.build_parts().edge_rules
    found = _load_edge_models(run, experiment, rules.add_memory(initial_model(task, 0)))
    models = {i: rules.read_average(model) for i, model in found.models.items()}
    if edge is not None and edge not in models:
        raise InputError(f"edge = {edge}: the run has edge servers {', '.join(map(str, models))}")
    whose = "consensus model" if edge is None else f"model of edge server {edge}"
    return TrainedModel(
        found.round,
        "model of this edge server" if found.alone else whose,
        mean_model(found.sizes, models) if edge is None else models[edge],
    )


def _load_edge_models(run: RunDirectory, experiment: Experiment, like: FlatModel) -> _EdgeModels:
    """The members' models in a run's checkpoint, or else those in the edge servers' state files."""
    checkpoint, directory = run.checkpoint(), run.path
    done = len(run.records()) if checkpoint is None else checkpoint.round
    members = find_membership(run, experiment, done)
    edge_of = [members.edge_of[n] for n in sorted(members.devices)]
    sizes = np.bincount(edge_of, minlength=members.clusters)
    if checkpoint is not None:
        with translate_parse_errors(directory / "checkpoint"):
            models = read_edge_models(checkpoint, members.clusters, like)
        return _EdgeModels(done, {i: models[i] for i in members.edges}, sizes)
    # A deployment's state; reading it needs packages that a simulation does not.
    from cfel.deployment.edge.storage import EdgeDisk, EdgeState
    from cfel.deployment.host import RealDisk

    def load_state(place: Path) -> EdgeState:
        check_directory(place)
        for _ in range(_MAX_ATTEMPTS - 1):
            try:
                return EdgeDisk(RealDisk(), place, like).load()
            except StorageError:
                time.sleep(_RETRY_SECONDS)
        return EdgeDisk(RealDisk(), place, like).load()

    check_directory(directory / "nodes")
    alone = EdgeDisk.holds_state(directory)
    nodes = {i: directory / "nodes" / f"edge-{i}" for i in members.edges}
    places = {members.edges[0]: directory} if alone else nodes
    states = {i: load_state(place) for i, place in places.items() if EdgeDisk.holds_state(place)}
    if not states:
        raise RunDirectoryError(f"{directory}: the run has no checkpoint yet, so there is nothing to export")
    # Edge servers may be one round apart; name the round that all of them have finished.
    first = min(state.position[0] for state in states.values())
    return _EdgeModels(first, {i: each.model for i, each in states.items()}, sizes, alone)


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
            f"{path}: tensor {[*lacking, *unknown][0]!r} is missing or unknown; a file with the shared part "
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
        # Not in NumPy's words, which advise to allow pickles.
        raise InputError(
            f"{path}: cannot be read: must be an .npy or .npz file of numbers, as numpy.save and numpy.savez "
            "write them"
        ) from error


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
    if not samples.size:
        raise InputError(f"{path}: holds no samples")
    wanted = np.dtype(form.dtype)
    # Bytes are scaled, other numbers are not: taking one for the other would give nonsense without an error.
    fits = samples.dtype.kind in "fiu" and (samples.dtype == np.uint8) == (wanted == np.uint8)
    if samples.shape[1:] != form.input_shape or not fits:
        raise InputError(
            f"{path}: samples are {samples.dtype} of shape {samples.shape[1:]}; the model takes {wanted} of "
            f"shape {form.input_shape}"
        )
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
