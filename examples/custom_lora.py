"""Fine-tuning: low-rank adapters (LoRA) in a frozen, pretrained transformer.

    cfel run examples/tiny.toml --set data.task=custom_lora:build --set rounds.local=10

A sentence is eight words, its class the topic that most of its words belong to. The transformer was trained
with the topics in another order. The devices train adapters and the last layer: 260 of 2,868 parameters, and
only those are sent and charged. Here pretraining takes a second; usually its result is read from a file.
"""

from pathlib import Path

import torch
from torch import Tensor, nn

from cfel.learning.data import DataSet
from cfel.learning.task import Task

WORDS, LENGTH, TOPICS, WIDTH, RANK = 24, 8, 4, 16, 2


class LowRank(nn.Linear):
    """A frozen dense layer and a trained change of low rank, which is zero at first."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer.in_features, layer.out_features)
        self.load_state_dict(layer.state_dict())
        self.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(RANK, layer.in_features) / layer.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(layer.out_features, RANK))

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output with its change."""
        return super().forward(x) + x @ self.down.T @ self.up.T


def transformer() -> nn.Sequential:
    """Embedding, one encoder layer, mean over the words, scores."""
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, dropout=0.1, batch_first=True)
    pool = nn.AdaptiveAvgPool2d((1, WIDTH))
    return nn.Sequential(nn.Embedding(WORDS, WIDTH), layer, pool, nn.Flatten(), nn.Linear(WIDTH, TOPICS))


def sentences(count: int, topic_of: Tensor) -> tuple[Tensor, Tensor]:
    """Random sentences and their topics."""
    words = torch.randint(WORDS, (count, LENGTH))
    return words, nn.functional.one_hot(topic_of[words], TOPICS).sum(1).argmax(1)


def build(_path: Path | None) -> Task:
    """Pretrains the transformer, and returns the task of adapting it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        pretrained, topic_of = transformer(), torch.arange(WORDS) % TOPICS
        optimiser = torch.optim.AdamW(pretrained.parameters(), lr=0.01)
        for _ in range(150):
            words, topics = sentences(64, topic_of)
            nn.functional.cross_entropy(pretrained(words), topics).backward()
            optimiser.step()
            optimiser.zero_grad()
        train, test = (sentences(count, topic_of.roll(1)) for count in (900, 300))

    def adapt(_shape: tuple[int, ...], _classes: int) -> nn.Module:
        model = transformer().requires_grad_(False)
        model.load_state_dict(pretrained.state_dict())
        model[1].linear1, model[1].linear2 = LowRank(model[1].linear1), LowRank(model[1].linear2)
        model[-1].requires_grad_(True)
        return model

    return Task(DataSet("sentences", *train, *test, classes=TOPICS), adapt)
