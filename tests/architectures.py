"""Models as users bring them, each for the 8×8 digits; tests name them as "tests.architectures:function"."""

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

Shape = tuple[int, ...]
WIDTH = 16


class _Lambda(nn.Module):
    """A function as a layer, which may ask for the mode."""

    def __init__(self, function: object) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.function(x, self.training)  # type: ignore[operator]
        return result


def _flat(shape: Shape, classes: int, *between: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(shape), WIDTH), *between, nn.Linear(WIDTH, classes)
    )


def mode_dependent(shape: Shape, classes: int) -> nn.Module:
    return _flat(shape, classes, nn.ReLU(), _Lambda(lambda x, training: 2.0 * x if training else x))


def perceptron(shape: Shape, classes: int) -> nn.Module:
    return _flat(shape, classes, nn.ReLU())


def convolutions(shape: Shape, classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(shape[0], 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, classes)
    )


class _Residual(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.change = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, bias=False), norm, nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.change(x)
        return result


def _residual(shape: Shape, classes: int, one: nn.Module, two: nn.Module) -> nn.Module:
    blocks = _Residual(one), _Residual(two)
    return nn.Sequential(
        nn.Conv2d(shape[0], 4, 3), *blocks, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, classes)
    )


def batch_norm(shape: Shape, classes: int) -> nn.Module:
    return _residual(shape, classes, nn.BatchNorm2d(4), nn.BatchNorm2d(4, momentum=None))


def group_norm(shape: Shape, classes: int) -> nn.Module:
    return _residual(shape, classes, nn.GroupNorm(2, 4), nn.GroupNorm(1, 4))


def batch_norm_of_values(shape: Shape, classes: int) -> nn.Module:
    return _flat(shape, classes, nn.BatchNorm1d(WIDTH), nn.ReLU())


def dropout(shape: Shape, classes: int) -> nn.Module:
    return _flat(shape, classes, nn.ReLU(), nn.Dropout(0.3))


def functional_dropout(shape: Shape, classes: int) -> nn.Module:
    return _flat(shape, classes, nn.ReLU(), _Lambda(lambda x, training: F.dropout(x, 0.3, training)))


def always_random(shape: Shape, classes: int) -> nn.Module:
    """Also in evaluation: `F.dropout` without the mode."""
    return _flat(shape, classes, _Lambda(lambda x, _: F.dropout(x, 0.1)))


def data_dependent(shape: Shape, classes: int) -> nn.Module:
    """Branches on its input."""
    return _flat(shape, classes, _Lambda(lambda x, _: x if float(x.detach().sum()) > 0 else -x))


def random_slopes(shape: Shape, classes: int) -> nn.Module:
    return _flat(shape, classes, nn.RReLU())


class _TiedLanguageModel(nn.Module):
    """Pixels as words; the table of words is also the last layer's weight."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.table = nn.Embedding(17, WIDTH)
        self.hidden = nn.Linear(WIDTH, WIDTH)
        self.scores = nn.Linear(WIDTH, 17, bias=False)
        self.scores.weight = self.table.weight
        self.classes = classes

    def forward(self, x: Tensor) -> Tensor:
        words = (4 * x.flatten(1) + 4).long().clamp(0, 16)
        scores: Tensor = self.scores(F.relu(self.hidden(self.table(words).mean(1))))
        return scores[:, : self.classes]


def tied(_shape: Shape, classes: int) -> nn.Module:
    return _TiedLanguageModel(classes)


class _Recurrent(nn.Module):
    def __init__(self, kind: type[nn.GRU] | type[nn.LSTM], width: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.cell = kind(width, WIDTH, num_layers=2, batch_first=True, dropout=dropout)
        self.scores = nn.Linear(WIDTH, classes)

    def forward(self, x: Tensor) -> Tensor:
        outputs, _ = self.cell(x.flatten(1, -2))
        scores: Tensor = self.scores(outputs[:, -1])
        return scores


def gru(shape: Shape, classes: int) -> nn.Module:
    return _Recurrent(nn.GRU, shape[-1], classes, 0.0)


def lstm(shape: Shape, classes: int) -> nn.Module:
    return _Recurrent(nn.LSTM, shape[-1], classes, 0.2)


class _Transformer(nn.Module):
    """Rows as words, with a table of positions that is a buffer and never changes."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.enter = nn.Linear(shape[-1], WIDTH)
        self.register_buffer("positions", torch.linspace(0, 1, shape[-2])[:, None].repeat(1, WIDTH))
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.1, batch_first=True)
        self.scores = nn.Linear(WIDTH, classes)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.scores(self.layer(self.enter(x.flatten(1, -2)) + self.positions).mean(1))
        return scores


def transformer(shape: Shape, classes: int) -> nn.Module:
    return _Transformer(shape, classes)


class LowRank(nn.Linear):
    """A frozen dense layer with a trained low-rank change."""

    def __init__(self, frozen: nn.Linear, rank: int) -> None:
        super().__init__(frozen.in_features, frozen.out_features)
        self.load_state_dict(frozen.state_dict())
        self.requires_grad_(False)
        self.down = nn.Linear(frozen.in_features, rank, bias=False)
        self.up = nn.Linear(rank, frozen.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output with its change."""
        changed: Tensor = super().forward(x) + self.up(self.down(x))
        return changed


def low_rank(shape: Shape, classes: int) -> nn.Module:
    model = _Transformer(shape, classes).requires_grad_(False)
    model.layer.linear1 = LowRank(model.layer.linear1, 2)
    model.layer.linear2 = LowRank(model.layer.linear2, 2)
    model.scores.requires_grad_(True)
    return model


def frozen_backbone(shape: Shape, classes: int) -> nn.Module:
    model = _flat(shape, classes, nn.ReLU())
    for parameter in list(model.parameters())[:2]:
        parameter.requires_grad_(False)
    return model


def _on_digits(function: str) -> dict[str, Any]:
    return {"model": {"name": f"tests.architectures:{function}"}}


TWELVE: Mapping[str, Mapping[str, Any]] = {
    "MLP": _on_digits("perceptron"),
    "CNN": _on_digits("convolutions"),
    "ResNet, batch norm": _on_digits("batch_norm"),
    "ResNet, group norm": _on_digits("group_norm"),
    "dropout": _on_digits("dropout"),
    "language model, tied embedding": _on_digits("tied"),
    "GRU": _on_digits("gru"),
    "LSTM": _on_digits("lstm"),
    "transformer encoder": _on_digits("transformer"),
    "LoRA, frozen transformer": _on_digits("low_rank"),
    "frozen backbone, trained head": _on_digits("frozen_backbone"),
    "regression": {"data": {"task": "tests.tasks:regression", "partition": "iid"}},
}
"""What every engine trains; docs/guides/models.md has the same list."""

THREE_ROUNDS: Mapping[str, Any] = {
    "rounds": {"global": 3, "edge": 1, "local": 2},
    "data": {"batch": 10},
    "fleet": {"devices": 4, "clusters": 2},
}
