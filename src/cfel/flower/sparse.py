"""Updates with only their largest entries, on named NumPy arrays; what was dropped is sent later.

The difference between trained and received arrays is one vector, of which the k = max(1, round(θ·d)) largest
entries are sent. The rest is the residual: it is added to the next difference (error feedback). Arrays that
are values rather than sums of gradients, such as the statistics of batch norm, are sent whole, and so is
whatever is not a floating-point array. Needs neither torch nor Flower.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cfel.arrays import Float32Array, Int32Array
from cfel.errors import InputError
from cfel.learning.top_k import find_largest, measure_kept_energy

Arrays: TypeAlias = Mapping[str, NDArray[Any]]
"""The arrays of a model by name, in its order."""

STATISTICS = ("running_mean", "running_var")
"""How the names of batch norm's statistics end in torch: they are sent whole."""


@dataclass(frozen=True, slots=True, eq=False)
class SparseUpdate:
    """What a node sends.

    Indices are ascending and count over all sparse arrays, one after another. Arrays in `whole` are sent as
    they are.
    """

    indices: Int32Array
    values: Float32Array
    whole: Arrays


def list_sparse(arrays: Arrays, whole: Sequence[str] = STATISTICS) -> list[str]:
    """The names of the arrays whose updates are sparsified: floats whose names end otherwise than `whole`."""
    return [
        name for name, array in arrays.items() if array.dtype.kind == "f" and not name.endswith(tuple(whole))
    ]


def sparsify(
    received: Arrays,
    trained: Arrays,
    theta: float,
    residual: Float32Array | None = None,
    whole: Sequence[str] = STATISTICS,
    kept_energy_at: Sequence[float] = (),
) -> tuple[SparseUpdate, Float32Array, tuple[float, ...]]:
    """The largest entries of a node's update, what it leaves out, and the energies at `kept_energy_at`.

    `theta` is the share of the entries to send, `residual` what earlier rounds have left out.
    """
    if not 0 < theta <= 1:
        raise InputError(f"theta: must lie in (0, 1], got {theta}")
    names = list_sparse(received, whole)
    for name, array in received.items():
        if name not in trained or trained[name].shape != array.shape:
            raise InputError(f"{name}: is missing after training, or has another shape than before")
    difference = _join(trained, names) - _join(received, names)
    if residual is not None and residual.size == difference.size:
        difference += residual
    kept = max(1, round(theta * difference.size)) if difference.size else 0
    indices, values = find_largest(difference, kept)
    energy = measure_kept_energy(difference, tuple(kept_energy_at)) if kept_energy_at else ()
    difference[indices] = 0
    rest = {name: array for name, array in trained.items() if name in received and name not in names}
    return SparseUpdate(indices, values, rest), difference, energy


def restore(
    model: Arrays, update: SparseUpdate, whole: Sequence[str] = STATISTICS
) -> dict[str, NDArray[Any]]:
    """The model that a node would have sent: the one it got, `model`, with its update."""
    names = list_sparse(model, whole)
    sent = np.zeros(sum(model[name].size for name in names), dtype=np.float32)
    _check(update, sent.size)
    sent[update.indices] = update.values
    restored: dict[str, NDArray[Any]] = {}
    start = 0
    for name, array in model.items():
        if name in names:
            part = sent[start : start + array.size].reshape(array.shape)
            restored[name] = np.asarray(array + part, dtype=array.dtype)
            start += array.size
            continue
        restored[name] = _check_array(name, array, update.whole.get(name))
    return restored


def check_arrays(model: Arrays, given: Arrays) -> None:
    """Checks the arrays of a client against those of the model: they are averaged with the others'."""
    for name, array in model.items():
        _check_array(name, array, given.get(name))


def _check_array(name: str, model: NDArray[Any], given: NDArray[Any] | None) -> NDArray[Any]:
    if given is None or given.shape != model.shape:
        raise InputError(f"update: {name} is missing, or has another shape than in the model")
    # Whole numbers and switches stay what they are: a counter must not become text or a complex number.
    if given.dtype.kind not in ("f" if model.dtype.kind == "f" else "biu"):
        raise InputError(f"update: {name} is {given.dtype}, in the model it is {model.dtype}")
    if given.dtype.kind == "f" and not np.isfinite(given).all():
        raise InputError(f"update: an entry of {name} is not a finite number; has the training diverged?")
    if name.endswith("running_var") and (given < 0).any():
        raise InputError(f"update: {name} has a negative variance")
    return given


def _check(update: SparseUpdate, size: int) -> None:
    indices, values = update.indices, update.values
    kinds = indices.dtype.kind, values.dtype.kind
    if indices.ndim != 1 or kinds != ("i", "f") or values.shape != indices.shape:
        raise InputError(
            "update: must have as many whole indices as values, which are floating-point numbers"
        )
    # Ascending and distinct: a repeated index would count one of its values only.
    if indices.size and (indices[0] < 0 or indices[-1] >= size or (np.diff(indices) <= 0).any()):
        raise InputError(f"update: its indices must be ascending, from 0 and below {size}")
    if not np.isfinite(values).all():
        raise InputError("update: an entry is not a finite number; has the training diverged?")


def _join(arrays: Arrays, names: Sequence[str]) -> Float32Array:
    parts = [np.asarray(arrays[name], dtype=np.float32).ravel() for name in names]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.float32)
