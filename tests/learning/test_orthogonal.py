"""Orthogonalised updates: numbers by hand, and what is left as it is."""

import pytest
import torch
from torch import nn

from cfel.errors import InputError
from cfel.learning import edge
from cfel.learning.compressors import DenseUpdate
from cfel.learning.device_messages import DeviceReport
from cfel.learning.edge import (
    AggregationParameters,
    EdgeRules,
    build_optimiser,
    find_polar_factor,
    orthogonalise,
    update_edge_model,
)
from cfel.learning.models.flat import FlatModel, FlatModule, Slot
from cfel.learning.torch_state import seed_generator


@pytest.mark.parametrize("shape", [(6, 9), (9, 6), (7, 7), (1, 5)])
def test_singular_values_become_alike(shape: tuple[int, int]) -> None:
    """The polynomial brings singular values from 1 down to a hundredth into 0.6 … 1.3, vectors unchanged."""
    generator = torch.Generator().manual_seed(1)
    u, _, v = torch.linalg.svd(torch.randn(shape, generator=generator), full_matrices=False)
    size = min(shape)
    matrix = u @ torch.diag(torch.logspace(0, -2, size)) @ v
    inner = u.T @ find_polar_factor(matrix) @ v.T
    assert ((inner.diag() > 0.6) & (inner.diag() < 1.3)).all()
    assert (inner - torch.diag(inner.diag())).abs().max() < 1e-3


def test_the_length_stays_and_the_rest_is_copied() -> None:
    """A diagonal matrix of 3 and 4 has length 5, and a bias of 7 beside it."""
    update = torch.tensor([3.0, 0.0, 0.0, 4.0, 7.0])
    found = orthogonalise(update, [Slot("weight", (2, 2), 0, 4)])
    assert found[:4].norm().item() == pytest.approx(5.0)
    assert found[4].item() == 7.0
    assert update.tolist() == [3.0, 0.0, 0.0, 4.0, 7.0]


def test_nothing_is_made_of_nothing() -> None:
    assert not orthogonalise(torch.zeros(6), [Slot("weight", (2, 3), 0, 6)]).any()


def test_large_matrices_are_orthogonalised_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two blocks of three rows are what each of them is alone."""
    matrix = torch.randn(6, 20, generator=torch.Generator().manual_seed(2))
    monkeypatch.setattr(edge, "MOST_ROWS", 3)
    blocks = torch.cat([find_polar_factor(matrix[:3]), find_polar_factor(matrix[3:])])
    assert torch.equal(find_polar_factor(matrix), blocks)


def test_the_last_layer_embeddings_and_vectors_are_left_alone() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(5, 4)
            self.hidden = nn.Linear(4, 3)
            self.norm = nn.LayerNorm(3)
            self.last = nn.Linear(3, 2)

    with seed_generator(0):
        modules = FlatModule(Model()), FlatModule(Model(), personal=["last.*"])
    for flat in modules:
        assert [slot.name for slot in flat.find_hidden_matrices()] == ["hidden.weight"]


@pytest.mark.parametrize(("used", "rate"), [(0.0, 2.0), (0.5, 1.1), (1.0, 0.2)])
def test_the_rate_falls_with_the_run(used: float, rate: float) -> None:
    """Linear from 2 to a tenth of it; a model without matrices gets the mean update times the rate."""
    parameters = AggregationParameters(
        optimiser="orthogonal", learning_rate=2.0, schedule="linear", final_rate=0.1
    )
    rule = build_optimiser(parameters)
    assert rule is not None
    report = DeviceReport(0, DenseUpdate(torch.ones(1)), torch.empty(0), None, 1, 0.5, 10)
    model = FlatModel(torch.zeros(1), torch.empty(0))
    rules = EdgeRules((rule,), parameters)
    found = update_edge_model(model, [report], {0: 1.0}, rules, share=1.0, rate=0.1, used=used)
    assert found.parameters.item() == pytest.approx(rate)


def test_a_wrong_schedule_is_named() -> None:
    with pytest.raises(InputError, match=r"aggregation.schedule: unknown 'cosin'"):
        AggregationParameters(schedule="cosin")  # type: ignore[arg-type]
