"""Who holds which training samples: one array of sample indices per device.

    iid         splits the samples evenly at random
    dirichlet   draws each class's split over the devices from a symmetric Dirichlet distribution (Hsu et al.)
    writer      gives each device the samples of one writer
    shards      sorts by label and gives each device a few contiguous shards (McMahan et al.)

All are vectorised: ten thousand devices take a fraction of a second. Each draws only from the generator that
it is given. Data are indexed, not copied, except by writer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import torch

from cfel import validation
from cfel.arrays import FloatArray, IntArray
from cfel.errors import InputError, unknown_name
from cfel.learning.data.dataset import DataSet
from cfel.seeding import make_generator

Rule = Literal["iid", "dirichlet", "writer", "shards"]


@dataclass(frozen=True, slots=True)
class PartitionParameters:
    """How training samples are spread over the devices.

    Attributes:
        rule: "iid", "dirichlet", "writer" or "shards".
        beta: concentration of the Dirichlet distribution, > 0; the smaller, the more the devices differ.
        least: every device gets at least this many samples ("dirichlet"), ≥ 1.
        shards: shards per device ("shards"), ≥ 1.
    """

    rule: Rule = "iid"
    beta: float = 1.0
    least: int = 2
    shards: int = 2

    def __post_init__(self) -> None:
        if self.rule not in get_args(Rule):
            raise InputError(unknown_name("data.partition", self.rule, get_args(Rule)))
        validation.check_number("data.beta", self.beta, above=0)
        validation.check_whole("data.least", self.least, least=1)
        validation.check_whole("data.shards", self.shards, least=1)


def partition(
    data: DataSet, devices: int, parameters: PartitionParameters, seed: int
) -> tuple[DataSet, list[IntArray]]:
    """Spreads a data set's training samples over devices.

    Returns:
        The data set, and for each device the ascending indices of its training samples. By writer, the data
        set holds only the drawn writers, also for testing.
    """
    samples = len(data.train_targets)
    each = parameters.least if parameters.rule == "dirichlet" else 1
    if devices < 1 or samples < devices * each:
        reason = "" if each == 1 else f", as each needs {each} (data.least)"
        raise InputError(
            f"partition: {samples} samples of {data.name!r} are too few for {devices} devices{reason}"
        )
    draw = make_generator(seed, "partition")
    if parameters.rule == "writer":
        return partition_by_writer(data, devices, draw)
    if parameters.rule == "iid":
        return data, partition_iid(samples, devices, draw)
    labels = _read_labels(data)
    if labels is None:
        raise InputError(
            f"data.partition: {parameters.rule!r} needs class labels, which {data.name!r} does not have"
        )
    if parameters.rule == "shards":
        return data, partition_by_shards(labels, devices, parameters.shards, draw)
    return data, partition_dirichlet(labels, devices, parameters.beta, parameters.least, draw)


def partition_iid(samples: int, devices: int, draw: np.random.Generator) -> list[IntArray]:
    """Splits shuffled samples; sizes differ by at most one."""
    return [np.sort(part) for part in np.array_split(draw.permutation(samples), devices)]


def partition_dirichlet(
    labels: IntArray, devices: int, beta: float, least: int, draw: np.random.Generator
) -> list[IntArray]:
    """Splits each class over the devices in shares drawn from Dirichlet(β, …, β).

    Devices with fewer than `least` samples then get random spare samples of the others. Drawing again until
    all devices are large enough, as is often done, may never end.
    """
    # One owner per sample, whatever the number of devices: lists per device would be slow for ten thousand.
    owner = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        own = draw.permutation(np.flatnonzero(labels == label))
        cuts = np.rint(np.cumsum(_draw_shares(devices, beta, draw))[:-1] * own.size).astype(np.int64)
        owner[own] = np.searchsorted(cuts, np.arange(own.size), side="right")
    _top_up(owner, devices, least, draw)
    return _group_by_owner(owner, devices)


def partition_by_shards(
    labels: IntArray, devices: int, shards: int, draw: np.random.Generator
) -> list[IntArray]:
    """Cuts the samples, sorted by label, into devices × shards pieces, and gives each device `shards`."""
    if len(labels) < devices * shards:
        raise InputError(f"partition: {len(labels)} samples are too few for {devices} × {shards} shards")
    order = draw.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    pieces = np.array_split(order, devices * shards)
    # Random shards, as neighbouring ones hold the same class.
    dealt = draw.permutation(devices * shards).reshape(devices, shards)
    return [np.sort(np.concatenate([pieces[i] for i in row])) for row in dealt]


def partition_by_writer(
    data: DataSet, devices: int, draw: np.random.Generator
) -> tuple[DataSet, list[IntArray]]:
    """Gives each device all samples of one writer; writers are drawn without replacement."""
    if data.train_writers is None or data.test_writers is None:
        raise InputError(f"data.partition: {data.name!r} names no writers, so it cannot be split by writer")
    # A writer without test samples would not be represented in the test set.
    writers = np.intersect1d(data.train_writers, data.test_writers)
    if writers.size < devices:
        raise InputError(f"partition: {data.name!r} has {writers.size} writers for {devices} devices")
    drawn = np.sort(draw.choice(writers, devices, replace=False))
    restricted = data.select_writers(drawn)
    assert restricted.train_writers is not None  # noqa: S101 — checked above
    return restricted, _group_by_owner(np.searchsorted(drawn, restricted.train_writers), devices)


def _read_labels(data: DataSet) -> IntArray | None:
    """Class labels of the training samples, or None where targets are not classes."""
    targets = data.train_targets
    if targets.dim() != 1 or targets.is_floating_point():
        return None
    return np.asarray(targets.numpy(), dtype=np.int64)


def _draw_shares(devices: int, beta: float, draw: np.random.Generator) -> FloatArray:
    """Draws Dirichlet shares, by normalising gamma variates."""
    gammas = draw.standard_gamma(beta, devices)
    # For tiny β all of them can underflow to 0. In the limit one device gets everything.
    if gammas.sum() == 0:
        gammas[draw.integers(devices)] = 1.0
    return np.asarray(gammas / gammas.sum())


def _top_up(owner: IntArray, devices: int, least: int, draw: np.random.Generator) -> None:
    """Moves random samples from devices above `least` to those below, in place."""
    counts = np.bincount(owner, minlength=devices)
    missing = np.repeat(np.arange(devices), np.maximum(least - counts, 0))
    if missing.size == 0:
        return
    # Shuffled within each owner; those beyond an owner's first `least` are spare.
    order = draw.permutation(len(owner))
    order = order[np.argsort(owner[order], kind="stable")]
    rank = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    spare = draw.permutation(order[rank >= least])
    owner[spare[: missing.size]] = missing


def _group_by_owner(owner: IntArray, devices: int) -> list[IntArray]:
    """The samples of each owner, ascending."""
    order = np.argsort(owner, kind="stable")
    return np.split(order, np.cumsum(np.bincount(owner, minlength=devices))[:-1])


def hold_out(
    data: DataSet, shares: Sequence[IntArray], share: float, seed: int
) -> tuple[DataSet, list[IntArray]]:
    """Replaces the test set by held-out training samples, to choose learning rates without the test set.

    They are spread evenly over each device's classes. The real test samples are not used at all.

    Args:
        data: the data set.
        shares: training samples of each device.
        share: of each device's samples to hold out, in (0, 1); rounded to whole samples, and a device keeps
            at least one.
        seed: the experiment's.

    Returns:
        The data set with the new test set, and the training samples that each device keeps.
    """
    # A stream of its own, so that holding out changes no other draw of the run.
    draw = make_generator(seed, "held out")
    found = _read_labels(data)
    labels = np.zeros(len(data.train_targets), dtype=np.int64) if found is None else found
    taken = [_draw_evenly(indices, labels, share, draw) for indices in shares]
    held = np.sort(np.concatenate(taken))
    if held.size == 0:
        raise InputError(f"data.held_out = {share}: no device has enough samples to spare one")
    places = torch.from_numpy(held)
    tested = replace(
        data,
        test_inputs=data.train_inputs[places],
        test_targets=data.train_targets[places],
        test_writers=None if data.train_writers is None else data.train_writers[held],
    )
    return tested, [np.setdiff1d(own, out) for own, out in zip(shares, taken, strict=True)]


def _draw_evenly(own: IntArray, labels: IntArray, share: float, draw: np.random.Generator) -> IntArray:
    """Draws every n-th of a device's samples, sorted by class and shuffled within each class."""
    shuffled = draw.permutation(own)
    ordered = shuffled[np.argsort(labels[shuffled], kind="stable")]
    # A device must keep at least one sample to train on.
    count = min(round(share * own.size), own.size - 1)
    places = ((np.arange(count) + draw.random()) * own.size / max(count, 1)).astype(np.int64)
    return np.asarray(ordered[places])
