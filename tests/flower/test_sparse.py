"""Sparse updates on plain arrays: what is sent, what is kept for later, what comes out at the server."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cfel.errors import InputError
from cfel.flower.sparse import SparseUpdate, check_arrays, restore, sparsify

Model = dict[str, NDArray[Any]]


def make_model(*values: float, mean: float = 0.0, count: int = 0) -> Model:
    weights = np.array(values, dtype=np.float32)
    return {
        "layer.weight": weights[:-1].reshape(1, -1),
        "norm.running_mean": np.array([mean], dtype=np.float32),
        "norm.num_batches_tracked": np.array(count),
        "layer.bias": weights[-1:],
    }


def test_the_largest_entries_are_sent_and_the_rest_is_kept() -> None:
    """Differences 1, −4, 2 and 3: half of them are −4 and 3; the residual is 1 and 2."""
    received, trained = make_model(0, 0, 0, 0), make_model(1, -4, 2, 3, mean=0.5, count=7)
    update, residual, energy = sparsify(received, trained, 0.5, kept_energy_at=(0.25, 1.0))
    assert update.indices.tolist() == [1, 3]
    assert update.values.tolist() == [-4, 3]
    assert residual.tolist() == [1, 0, 2, 0]
    assert energy == (16 / 30, 1.0)
    found = restore(received, update)
    assert found["layer.weight"].tolist() == [[0, -4, 0]]
    assert found["layer.bias"].tolist() == [3]
    # Statistics and counters are values: they arrive whole.
    assert found["norm.running_mean"].tolist() == [0.5]
    assert found["norm.num_batches_tracked"] == 7
    assert {name: array.dtype for name, array in found.items()} == {
        name: array.dtype for name, array in received.items()
    }


def test_what_was_left_out_is_sent_later() -> None:
    """A node that changes nothing more sends the rest of 1, −4, 2, 3 in the order of its size."""
    model, residual = make_model(0, 0, 0, 0), None
    update, residual, _ = sparsify(model, make_model(1, -4, 2, 3), 0.25)
    model = restore(model, update)
    for expected in ([3.0], [2.0], [1.0]):
        update, residual, _ = sparsify(model, model, 0.25, residual)
        assert update.values.tolist() == expected
        model = restore(model, update)
    assert residual.tolist() == [0, 0, 0, 0]
    assert model["layer.weight"].tolist() == [[1, -4, 2]]


def test_with_theta_1_the_trained_model_arrives() -> None:
    received, trained = make_model(5, 6, 7, 8), make_model(1.5, -4, 2, 3)
    update, residual, _ = sparsify(received, trained, 1.0)
    assert not residual.any()
    found = restore(received, update)
    for name, array in trained.items():
        np.testing.assert_array_equal(found[name], array)


def test_arrays_without_a_sum_of_gradients_can_be_named() -> None:
    received, trained = make_model(0, 0, 0, 0), make_model(1, 2, 3, 4)
    update, _, _ = sparsify(received, trained, 1.0, whole=("bias", "running_mean"))
    assert update.indices.tolist() == [0, 1, 2]
    assert update.whole["layer.bias"].tolist() == [4]
    assert restore(received, update, whole=("bias", "running_mean"))["layer.bias"].tolist() == [4]


def test_a_model_with_other_arrays_is_rejected() -> None:
    received = make_model(0, 0, 0)
    with pytest.raises(InputError, match=r"layer\.weight"):
        sparsify(received, make_model(0, 0, 0, 0), 0.5)
    with pytest.raises(InputError, match="theta"):
        sparsify(received, received, 0.0)
    with pytest.raises(InputError, match="diverged"):
        sparsify(received, make_model(0, np.nan, 0), 0.5)


@pytest.mark.parametrize(
    ("indices", "values", "words"),
    [
        ([0, 0], [1.0, 1.0], "ascending"),
        ([-1, 0], [1.0, 1.0], "ascending"),
        ([2, 3], [1.0, 1.0], "below 3"),
        ([0], [1.0, 1.0], "as many"),
        ([0], [np.inf], "finite"),
    ],
)
def test_updates_of_others_are_checked(indices: list[int], values: list[float], words: str) -> None:
    model = make_model(0, 0, 0)
    whole = {"norm.running_mean": np.zeros(1), "norm.num_batches_tracked": np.array(0)}
    update = SparseUpdate(np.array(indices, np.int32), np.array(values, np.float32), whole)
    with pytest.raises(InputError, match=words):
        restore(model, update)


def test_an_update_without_its_whole_arrays_is_rejected() -> None:
    update = SparseUpdate(np.zeros(0, np.int32), np.zeros(0, np.float32), {})
    with pytest.raises(InputError, match="running_mean is missing"):
        restore(make_model(0, 0), update)


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("layer.bias", np.array([np.nan], np.float32), "layer.bias is not a finite"),
        ("layer.bias", np.array([-np.inf]), "layer.bias is not a finite"),
        ("layer.bias", np.array(["1.0"]), "layer.bias is <U3"),
        ("layer.bias", np.array([1j]), "layer.bias is complex"),
        ("norm.running_mean", np.array([np.nan], np.float32), "running_mean is not a finite"),
        ("norm.running_mean", np.array(["low"]), "running_mean is <U3"),
        ("norm.num_batches_tracked", np.array(0.5), "num_batches_tracked is float64"),
        ("layer.weight", np.zeros((2, 1), np.float32), "layer.weight is missing, or has another shape"),
    ],
)
def test_whole_replies_are_checked(name: str, given: NDArray[Any], words: str) -> None:
    """FedAvg would average them as they are, and the model of all would be NaN."""
    model = make_model(0, 0, 0)
    check_arrays(model, make_model(1, 2, 3, mean=0.5, count=9))
    with pytest.raises(InputError, match=words):
        check_arrays(model, {**model, name: given})


def test_negative_variances_are_rejected() -> None:
    model = {"norm.running_var": np.ones(2, np.float32)}
    with pytest.raises(InputError, match="running_var has a negative variance"):
        check_arrays(model, {"norm.running_var": np.array([1.0, -1.0], np.float32)})


def test_values_must_be_numbers() -> None:
    whole = {"norm.running_mean": np.zeros(1), "norm.num_batches_tracked": np.array(0)}
    update = SparseUpdate(np.zeros(1, np.int32), np.array(["1.0"]), whole)
    with pytest.raises(InputError, match="floating-point numbers"):
        restore(make_model(0, 0, 0), update)
