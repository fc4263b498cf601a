"""Data, labels and scores that do not fit: what is said, and what is let through."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from cfel.errors import InputError
from cfel.learning.data.dataset import DataSet
from cfel.learning.task import check_finite, check_labels, check_scores

ROWS = 6
LABELS = torch.arange(ROWS) % 3
INPUTS = torch.ones(ROWS, 2)
DATA = DataSet("d", INPUTS, LABELS, INPUTS, LABELS, 3)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (
            LABELS.float(),
            r"^d: test targets are float32; class labels must be .* convert them with \.long\(\)",
        ),
        (LABELS.int(), r"^d: test targets are int32"),
        (LABELS + 1, r"^d: test targets: row 2 holds label 3; with 3 classes, labels are 0 … 2$"),
        (LABELS - 1, r"row 0 holds label -1"),
        (torch.stack([LABELS, LABELS + 1], 1), r"row 2 holds label \[2, 3\]"),
    ],
)
def test_labels_that_are_no_classes(labels: Tensor, words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_labels("d", replace(DATA, test_targets=labels))


def test_labels_that_the_loss_takes() -> None:
    check_labels("d", DATA)
    check_labels("d", replace(DATA, train_targets=LABELS.to(torch.uint8)))
    check_labels("d", replace(DATA, train_targets=torch.full((ROWS, 2), -100)))
    check_labels("d", replace(DATA, train_targets=torch.full((ROWS, 3), 1 / 3)))


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        ((torch.ones(ROWS, 3), None), "returns a tuple; .* 3 scores"),
        (torch.ones(ROWS, 2), r"outputs of shape \(2,\) per sample; must be \(3,\)"),
        (torch.ones(ROWS), r"outputs of shape \(\) per sample"),
        (torch.ones(ROWS, 3, 4), r"outputs of shape \(3, 4\) per sample"),
    ],
)
def test_scores_that_do_not_fit_the_classes(outputs: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_scores("d", outputs, LABELS, 3)


def test_scores_of_more_classes_and_of_sequences_fit() -> None:
    check_scores("d", torch.ones(ROWS, 5), LABELS, 3)
    check_scores("d", torch.ones(ROWS, 3, 4), LABELS[:, None].expand(-1, 4), 3)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_inputs_that_are_not_finite(value: float) -> None:
    inputs = INPUTS.clone()
    inputs[4, 1] = value
    data = replace(DATA, test_inputs=inputs)
    with pytest.raises(InputError, match=rf"^d: test inputs: row 4 holds {value}"):
        check_finite("d", data, nn.Identity())


def test_a_model_may_cope_with_missing_values() -> None:
    class Fill(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.nan_to_num()

    check_finite("d", replace(DATA, train_inputs=torch.full((ROWS, 2), torch.nan)), Fill())
    check_finite("d", replace(DATA, train_inputs=LABELS[:, None].expand(-1, 2)), nn.Identity())


def test_arrays_are_not_tensors() -> None:
    with pytest.raises(InputError, match=r"^d: train_inputs is a ndarray"):
        replace(DATA, train_inputs=INPUTS.numpy())  # type: ignore[arg-type]
