"""The models that come with cfel, each a builder `(input_shape, classes) -> module`.

Each module maps a batch, float32 or codes of text, to scores, and converts images to the memory format that
is fastest for it. Weights have torch's usual initialisation; `task.initial_model` seeds the generator.
Nothing here knows about data, loss or training. User-defined models are added by entry point (`cfel.model`)
or as "module:function".
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

import torch
import torch.nn.functional as F  # noqa: N812 — the name every torch reader knows
from torch import Tensor, nn

from cfel.errors import InputError
from cfel.learning.data.hub import VOCABULARY
from cfel.plugins import BUILT_IN_ONLY, CodePolicy, call_part, check_result, resolve

ModelBuilder: TypeAlias = Callable[[tuple[int, ...], int], nn.Module]


def _channels_last(x: Tensor) -> Tensor:
    """Images with their channels innermost in memory; written so that `torch.func.vmap` supports it."""
    return x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


class _BasicBlock(nn.Module):
    """Two 3×3 convolutions; the shortcut subsamples and pads with zeros where the shape changes."""

    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.convolution1 = nn.Conv2d(into, out, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(out)
        self.convolution2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(out)
        self.stride, self.padding = stride, (out - into) // 2

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.convolution1(x)), inplace=True)
        y = self.norm2(self.convolution2(y))
        if self.padding:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.padding, self.padding))
        return F.relu(y + x, inplace=True)


class ResNet20(nn.Module):
    """The CIFAR variant of He et al. with parameter-free ("option A") shortcuts."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, 16, 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        widths = ((16, 16, 1), (16, 32, 2), (32, 64, 2))
        self.blocks = nn.Sequential(
            *(
                _BasicBlock(into if first else out, out, stride if first else 1)
                for into, out, stride in widths
                for first in (True, False, False)
            )
        )
        self.dense = nn.Linear(64, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = _channels_last(x)
        x = F.relu(self.norm(self.convolution(x)), inplace=True)
        scores: Tensor = self.dense(self.blocks(x).mean((2, 3)))
        return scores


class TwoConvolutions(nn.Module):
    """Convolution, pooling, convolution, pooling, dense, dense: LEAF's FEMNIST network and a smaller one."""

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        classes: int,
        filters: tuple[int, int],
        kernel: int,
        hidden: int,
    ) -> None:
        super().__init__()
        channels, height, width = input_shape
        self.convolution1 = nn.Conv2d(channels, filters[0], kernel, padding=kernel // 2)
        self.convolution2 = nn.Conv2d(filters[0], filters[1], kernel, padding=kernel // 2)
        self.dense1 = nn.Linear(filters[1] * (height // 4) * (width // 4), hidden)
        self.dense2 = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = _channels_last(x)
        x = F.relu(F.max_pool2d(self.convolution1(x), 2))  # after pooling, a quarter of the work is left
        x = F.relu(F.max_pool2d(self.convolution2(x), 2))
        scores: Tensor = self.dense2(F.relu(self.dense1(x.flatten(1))))
        return scores


class Perceptron(nn.Module):
    """One hidden layer of 64 units over the flattened input."""

    def __init__(self, inputs: int, classes: int, hidden: int = 64) -> None:
        super().__init__()
        self.dense1 = nn.Linear(inputs, hidden)
        self.dense2 = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.dense2(F.relu(self.dense1(x.flatten(1))))
        return scores


def _check_image_shape(model: str, input_shape: tuple[int, ...], least: int) -> tuple[int, int, int]:
    if len(input_shape) != 3 or min(input_shape[1:]) < least:
        raise InputError(
            f"model {model!r}: inputs must be images (channels, height, width) of at least {least}×{least}, "
            f"got shape {input_shape}"
        )
    channels, height, width = input_shape
    return channels, height, width


def resnet20(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """ResNet-20; 269,722 parameters on CIFAR-10."""
    return ResNet20(_check_image_shape("resnet20", input_shape, 16)[0], classes)


def leaf_cnn(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """LEAF's FEMNIST network (32 and 64 filters of 5×5, 2048 units); 6,603,710 parameters on FEMNIST."""
    return TwoConvolutions(_check_image_shape("leaf_cnn", input_shape, 8), classes, (32, 64), 5, 2048)


def small_cnn(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A network of 167,759 parameters on 3×32×32, 10 classes (16 and 32 filters of 3×3, 79 units)."""
    return TwoConvolutions(_check_image_shape("small_cnn", input_shape, 8), classes, (16, 32), 3, 79)


def mlp(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A perceptron with one hidden layer of 64 units; 4,810 parameters on the 8×8 digits."""
    return Perceptron(int(torch.Size(input_shape).numel()), classes)


class Recurrent(nn.Module):
    """Embeddings of 16 numbers, a GRU of 128 units, and scores from its last state."""

    def __init__(self, codes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(codes, 16)
        self.recurrent = nn.GRU(16, 128, batch_first=True)
        self.dense = nn.Linear(128, codes)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.recurrent(self.embedding(x))
        scores: Tensor = self.dense(states[:, -1])
        return scores


class WordAverage(nn.Module):
    """The mean of the words' embeddings of 32 numbers, and a dense layer."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 32)
        self.dense = nn.Linear(32, classes)

    def forward(self, x: Tensor) -> Tensor:
        words = (x != 0).float()[:, :, None]
        scores: Tensor = self.dense((self.embedding(x) * words).sum(1) / words.sum(1).clamp(min=1))
        return scores


def _check_text_shape(model: str, input_shape: tuple[int, ...]) -> None:
    if len(input_shape) != 1:
        raise InputError(f"model {model!r}: inputs must be codes of text, got shape {input_shape}")


def gru(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A recurrent network that predicts the next character or word; 93,184 parameters on Shakespeare."""
    _check_text_shape("gru", input_shape)
    return Recurrent(classes)


def word_average(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A classifier of texts by the mean of word embeddings; 262,210 parameters on Sent140."""
    _check_text_shape("word_average", input_shape)
    return WordAverage(classes)


BUILTIN: Mapping[str, ModelBuilder] = MappingProxyType(
    {
        "resnet20": resnet20,
        "leaf_cnn": leaf_cnn,
        "small_cnn": small_cnn,
        "mlp": mlp,
        "gru": gru,
        "word_average": word_average,
    }
)


def model_builder(name: str, code: CodePolicy = BUILT_IN_ONLY) -> ModelBuilder:
    """The builder called `name`: built in, or an entry point `cfel.model` or "module:function"."""
    builder: ModelBuilder = resolve("model", name, BUILTIN, ("input_shape", "classes"), code=code)
    if name in BUILTIN:
        return builder
    if isinstance(builder, nn.Module):
        raise InputError(
            f"model {name!r} is a module; must be a function of (input_shape, classes) that builds it"
        )

    def build(input_shape: tuple[int, ...], classes: int) -> nn.Module:
        module: nn.Module = call_part(f"model {name!r}", builder, input_shape, classes)
        check_result(f"model {name!r}", module, nn.Module)
        return module

    return build
