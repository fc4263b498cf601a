"""Who holds which training samples: one array of sample indices per device.

    iid            splits the samples evenly at random
    dirichlet      draws each class's split over the devices from a Dirichlet distribution (Hsu et al.); with
                   `cluster_beta`, first over the clusters and then over the devices of each
    classes        gives each device the same number of classes
    shards         sorts by label and gives each device a few contiguous shards (McMahan et al.)
    sizes          splits the samples at random, unevenly
    distribution   gives each device, or the devices of each cluster, the mixture of classes that is asked for
    writer         gives each device the samples of one writer or of several

All are vectorised: ten thousand devices take a fraction of a second. Each draws only from the generator that
it is given. Data are indexed, not copied, except by writer. User-defined rules are added by entry point
(`cfel.partition`) or as "module:function".
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, TypeAlias

import numpy as np
import torch

from cfel import validation
from cfel.arrays import FloatArray, IntArray
from cfel.errors import InputError
from cfel.learning.data.dataset import DataSet
from cfel.plugins import BUILT_IN_ONLY, CodePolicy, call_part, resolve
from cfel.seeding import make_generator
from cfel.validation import Range, check_fields

SIZES: Mapping[str, Callable[[FloatArray], FloatArray]] = MappingProxyType(
    {
        "equal": np.ones_like,
        "linear": lambda n: n,
        "square": np.square,
        # Relative to the last device's: the powers of a large fleet would overflow.
        "exponential": lambda n: np.exp(n - n[-1]),
    }
)
"""Share of the device that is the n-th, from 1, up to a factor."""


@dataclass(frozen=True, slots=True)
class DataParameters:
    """The experiment file's `[data]`."""

    name: str = "digits"  # a built-in data set, an entry point's name, or "module:function"
    # The folder or file where it is; without it, "cifar10" and "femnist" are downloaded.
    path: str | None = None
    # How samples are spread over devices: "iid" at random, "dirichlet" with different shares of every class,
    # "classes" with the same number of classes each, "shards" with a few classes each, "sizes" unevenly,
    # "distribution" in given mixtures of classes, "writer" by who made them, or a user-defined
    # "module:function".
    partition: str = "dirichlet"
    # With "dirichlet", concentration of the distribution over devices, > 0; the smaller, the more the devices
    # differ.
    beta: Annotated[float, Range(above=0)] = 1.0
    # With "dirichlet", concentration of a distribution over clusters, > 0; `beta` is then the one within each
    # cluster. By default clusters play no part.
    cluster_beta: Annotated[float, Range(above=0)] | None = None
    # With "dirichlet" and "sizes", every device gets at least this many samples, ≥ 1.
    least: Annotated[int, Range(least=1)] = 2
    shards: Annotated[int, Range(least=1)] = 2  # with "shards", shards per device, ≥ 1
    classes_per_device: Annotated[int, Range(least=1)] = 2  # with "classes", ≥ 1
    # With "sizes", samples per device: a list of numbers; or "equal", "linear", "square" or "exponential" in
    # the number of the device.
    sizes: str | tuple[int, ...] = "equal"
    # With "distribution", shares of the classes, one list per device or one per cluster.
    distribution: tuple[tuple[Annotated[float, Range(least=0)], ...], ...] = ()
    writers_per_device: Annotated[int, Range(least=1)] = 1  # with "writer", ≥ 1
    batch: Annotated[int, Range(least=1)] = 50  # samples in a mini-batch, ≥ 1
    augment: str = "none"  # "none", "flip", "crop_flip", or a user-defined "module:function"
    # Share of every device's training samples to test on instead of the test set, and not to train on, in [0,
    # 0.9]. For choosing a learning rate.
    held_out: Annotated[float, Range(least=0, most=0.9)] = 0.0
    task: str | None = None  # a user-defined task ("module:function") instead of data set, model and loss

    def __post_init__(self) -> None:
        check_fields("data", self)
        if isinstance(self.sizes, str):
            validation.check_name("data.sizes", self.sizes, SIZES)
        else:
            for place, size in enumerate(validation.check_list("data.sizes", self.sizes)):
                validation.check_whole(f"data.sizes[{place}]", size, least=1)

    def check_target(self, field: str, target: float | None) -> None:
        """Raises an `InputError` for an accuracy above 1; a user-defined task may have any metric."""
        if target is not None and target > 1 and self.task is None:
            hint = f": {target / 100:g} is {target:g} %" if target <= 100 else ""
            raise InputError(f"{field} = {target:g}: must be at most 1, as accuracy is a share{hint}")

    def folder(self) -> Path | None:
        return None if self.path is None else Path(self.path)


Rule: TypeAlias = Callable[[DataSet, IntArray, DataParameters, np.random.Generator], Sequence[IntArray]]
"""(data, cluster of each device, parameters, generator) → the training samples of each device, by index."""


def partition(
    data: DataSet,
    cluster: IntArray,
    parameters: DataParameters,
    seed: int,
    code: CodePolicy = BUILT_IN_ONLY,
) -> tuple[DataSet, list[IntArray]]:
    """Spreads a data set's training samples over devices, whose clusters are given.

    Returns the data set, and for each device the ascending indices of its training samples. By writer, the
    data set holds only the drawn writers, also for testing.
    """
    rule, devices, samples = find_rule(parameters.partition, code), cluster.size, len(data.train_targets)
    each = parameters.least if parameters.partition in ("dirichlet", "sizes") else 1
    if devices < 1 or samples < devices * each:
        reason = "" if each == 1 else f", as each needs {each} (data.least)"
        raise InputError(
            f"partition: {samples} samples of {data.name!r} are too few for {devices} devices{reason}"
        )
    draw = make_generator(seed, "partition")
    if parameters.partition == "writer":
        data = _draw_writers(data, devices * parameters.writers_per_device, draw)
    what = f"partition {parameters.partition!r}"
    return data, _check_parts(what, call_part(what, rule, data, cluster, parameters, draw), data, devices)


def find_rule(name: str, code: CodePolicy = BUILT_IN_ONLY) -> Rule:
    """The rule called `name`: built in, an entry point `cfel.partition`, or "module:function"."""
    takes = ("data", "cluster", "parameters", "generator")
    rule: Rule = resolve("partition", name, RULES, takes, code=code)
    return rule


def _check_parts(what: str, parts: Sequence[IntArray], data: DataSet, devices: int) -> list[IntArray]:
    """The parts in ascending order, if every device has samples, and no sample is on two devices."""
    if len(parts) != devices:
        raise InputError(f"{what}: returned {len(parts)} arrays for {devices} devices")
    samples = len(data.train_targets)
    found = [np.sort(np.asarray(part)) for part in parts]
    for device, part in enumerate(found):
        if part.ndim != 1 or part.size == 0 or part.dtype.kind not in "iu":
            given = "no sample" if part.size == 0 else f"{part.dtype} of shape {part.shape}"
            raise InputError(f"{what}: device {device} must get indices of samples, gets {given}")
        if part[0] < 0 or part[-1] >= samples:
            odd = part[0] if part[0] < 0 else part[-1]
            raise InputError(f"{what}: device {device} gets sample {odd}, {data.name!r} has {samples}")
    holders = np.bincount(np.concatenate(found), minlength=samples)
    if holders.max() > 1:
        raise InputError(f"{what}: sample {int(np.argmax(holders > 1))} is given more than once")
    return [part.astype(np.int64) for part in found]


def partition_iid(
    data: DataSet, cluster: IntArray, _: DataParameters, draw: np.random.Generator
) -> list[IntArray]:
    """Splits shuffled samples; sizes differ by at most one."""
    return np.array_split(draw.permutation(len(data.train_targets)), cluster.size)


def partition_dirichlet(
    data: DataSet, cluster: IntArray, parameters: DataParameters, draw: np.random.Generator
) -> list[IntArray]:
    """Splits each class over the devices in shares drawn from Dirichlet(β, …, β).

    With `cluster_beta`, each class is split over the clusters and then within each cluster. Devices with
    fewer than `least` samples then get random spare samples of the others. Drawing again until all devices
    are large enough, as is often done, may never end.
    """
    labels, devices = _require_labels(data, "dirichlet"), cluster.size
    # One owner per sample, whatever the number of devices: lists per device would be slow for ten thousand.
    owner = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        own = draw.permutation(np.flatnonzero(labels == label))
        if parameters.cluster_beta is None:
            shares = _draw_shares(parameters.beta, devices, draw)
        else:
            shares = _draw_clustered_shares(cluster, parameters.cluster_beta, parameters.beta, draw)
        cuts = np.rint(np.cumsum(shares)[:-1] * own.size).astype(np.int64)
        owner[own] = np.searchsorted(cuts, np.arange(own.size), side="right")
    _top_up(owner, devices, parameters.least, draw)
    return _group_by_owner(owner, devices)


def partition_by_classes(
    data: DataSet, cluster: IntArray, parameters: DataParameters, draw: np.random.Generator
) -> list[IntArray]:
    """Gives each device `classes_per_device` classes, and splits each class evenly over its devices."""
    labels, devices, wanted = _require_labels(data, "classes"), cluster.size, parameters.classes_per_device
    classes = np.unique(labels)
    if not classes.size / devices <= wanted <= classes.size:
        raise InputError(
            f"data.classes_per_device = {wanted}: with {devices} devices and {classes.size} classes, must be "
            f"from {-(-classes.size // devices)}, so that every class is on some device, to {classes.size}"
        )
    held, holding = np.zeros((devices, classes.size), dtype=bool), np.zeros(classes.size)
    for device in range(devices):
        # Those that the fewest devices hold so far, in random order among equals.
        order = np.lexsort((draw.random(classes.size), holding))
        held[device, order[:wanted]] = True
        holding[order[:wanted]] += 1
    owner = np.empty(len(labels), dtype=np.int64)
    for place, label in enumerate(classes):
        own, holders = draw.permutation(np.flatnonzero(labels == label)), np.flatnonzero(held[:, place])
        owner[own] = holders[np.arange(own.size) * holders.size // own.size]
    return _group_by_owner(owner, devices)


def partition_by_shards(
    data: DataSet, cluster: IntArray, parameters: DataParameters, draw: np.random.Generator
) -> list[IntArray]:
    """Cuts the samples, sorted by label, into devices × shards pieces, and gives each device `shards`."""
    labels, devices, shards = _require_labels(data, "shards"), cluster.size, parameters.shards
    if len(labels) < devices * shards:
        raise InputError(f"partition: {len(labels)} samples are too few for {devices} × {shards} shards")
    order = draw.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    pieces = np.array_split(order, devices * shards)
    # Random shards, as neighbouring ones hold the same class.
    dealt = draw.permutation(devices * shards).reshape(devices, shards)
    return [np.concatenate([pieces[i] for i in row]) for row in dealt]


def partition_by_sizes(
    data: DataSet, cluster: IntArray, parameters: DataParameters, draw: np.random.Generator
) -> list[IntArray]:
    """Splits shuffled samples by given numbers, or in shares that grow with the device's number."""
    samples, devices, sizes = len(data.train_targets), cluster.size, parameters.sizes
    if isinstance(sizes, str):
        ends = np.cumsum(SIZES[sizes](np.arange(1.0, devices + 1)))
        spare = samples - devices * parameters.least
        counts = parameters.least + np.diff(np.rint(ends / ends[-1] * spare), prepend=0).astype(np.int64)
    else:
        counts = np.asarray(sizes, dtype=np.int64)
        if counts.size != devices or counts.sum() > samples:
            raise InputError(
                f"data.sizes: {counts.size} numbers with the sum {counts.sum()}; must be one for each of "
                f"{devices} devices, with a sum of at most {samples}"
            )
    return np.split(draw.permutation(samples)[: counts.sum()], np.cumsum(counts)[:-1])


def partition_by_distribution(
    data: DataSet, cluster: IntArray, parameters: DataParameters, draw: np.random.Generator
) -> list[IntArray]:
    """Gives all devices about equally many samples, as many as there are, in the mixtures asked for."""
    labels, devices = _require_labels(data, "distribution"), cluster.size
    mixture = _read_mixture(parameters.distribution, cluster, data.classes)
    there = np.bincount(labels, minlength=data.classes)
    asked = mixture.sum(0)
    # The class that is used up first decides how many samples a device gets.
    each = float((there[asked > 0] / asked[asked > 0]).min())
    # Rounding must not lose a whole sample to the last bit of a share.
    counts = np.floor(mixture * each + 1e-9).astype(np.int64)
    owner = np.full(len(labels), devices, dtype=np.int64)
    for label in range(data.classes):
        own = draw.permutation(np.flatnonzero(labels == label))
        owner[own[: counts[:, label].sum()]] = np.repeat(np.arange(devices), counts[:, label])
    return _group_by_owner(owner, devices + 1)[:devices]


def partition_by_writer(
    data: DataSet, cluster: IntArray, _: DataParameters, __: np.random.Generator
) -> list[IntArray]:
    """Deals the writers to the devices in turn."""
    rank = np.unique(_require_writers(data), return_inverse=True)[1]
    return _group_by_owner(rank % cluster.size, cluster.size)


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "iid": partition_iid,
        "dirichlet": partition_dirichlet,
        "classes": partition_by_classes,
        "shards": partition_by_shards,
        "sizes": partition_by_sizes,
        "distribution": partition_by_distribution,
        "writer": partition_by_writer,
    }
)


def _draw_writers(data: DataSet, count: int, draw: np.random.Generator) -> DataSet:
    """The data set with only some writers, drawn without replacement."""
    writers = _require_writers(data)
    assert data.test_writers is not None  # noqa: S101 — checked above
    # A writer without test samples would not be represented in the test set, unless others wrote all of it.
    both = np.intersect1d(writers, data.test_writers)
    known = both if both.size else np.unique(writers)
    if known.size < count:
        raise InputError(f"partition: {data.name!r} has {known.size} writers, {count} are needed")
    drawn = np.sort(draw.choice(known, count, replace=False))
    return data.select_writers(drawn, of_tests=both.size > 0)


def _require_writers(data: DataSet) -> IntArray:
    if data.train_writers is None or data.test_writers is None:
        raise InputError(f"data.partition: {data.name!r} names no writers, so it cannot be split by writer")
    return data.train_writers


def _require_labels(data: DataSet, rule: str) -> IntArray:
    labels = _read_labels(data)
    if labels is None:
        raise InputError(f"data.partition: {rule!r} needs class labels, which {data.name!r} does not have")
    return labels


def _read_mixture(rows: Sequence[Sequence[float]], cluster: IntArray, classes: int) -> FloatArray:
    """Shares of classes per device, from rows per device or per cluster; each row sums to 1."""
    devices, clusters = cluster.size, int(cluster.max()) + 1
    if len(rows) not in (devices, clusters):
        raise InputError(
            f"data.distribution: has {len(rows)} rows; must have one for each of {devices} devices, or for "
            f"each of {clusters} clusters"
        )
    for place, row in enumerate(rows):
        if len(row) != classes or not sum(row) > 0:
            raise InputError(
                f"data.distribution[{place}] = {list(row)}: must be {classes} shares, one per class, and not "
                "all zero"
            )
    table = np.asarray(rows, dtype=np.float64)
    table = table / table.sum(1, keepdims=True)
    return table if len(rows) == devices else np.asarray(table[cluster])


def _read_labels(data: DataSet) -> IntArray | None:
    """Class labels of the training samples, or None where targets are not classes."""
    targets = data.train_targets
    if targets.dim() != 1 or targets.is_floating_point():
        return None
    return np.asarray(targets.numpy(), dtype=np.int64)


def _draw_shares(beta: float | FloatArray, count: int, draw: np.random.Generator) -> FloatArray:
    """Draws Dirichlet shares, by normalising gamma variates; one concentration for all, or one each."""
    gammas = draw.standard_gamma(beta, count)
    # For tiny β all of them can underflow to 0. In the limit one gets everything.
    if gammas.sum() == 0:
        gammas[draw.integers(count)] = 1.0
    return np.asarray(gammas / gammas.sum())


def _draw_clustered_shares(
    cluster: IntArray, between: float, within: float, draw: np.random.Generator
) -> FloatArray:
    """Draws shares of clusters, on average by their size, and shares of the devices within each."""
    sizes = np.bincount(cluster)
    among = _draw_shares(between * sizes / sizes.mean(), sizes.size, draw)
    shares = np.empty(cluster.size)
    for number, size in enumerate(sizes.tolist()):
        shares[cluster == number] = among[number] * _draw_shares(within, size, draw)
    return shares


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

    They are spread evenly over each device's classes: a share of each device's samples in (0, 1), rounded,
    and a device keeps at least one. The real test samples are not used at all. Returns the data set with the
    new test set, and the training samples that each device keeps.
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
