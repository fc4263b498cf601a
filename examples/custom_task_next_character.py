r"""A user-defined task: predict the next character of a text.

    cfel run examples/tiny.toml --set data.task=custom_task_next_character:build --set data.partition=iid \
        --set rounds.global=12 --set rounds.local=10

With `--set data.path=FILE` the text comes from a file, otherwise it is the one below. A sample is a window of
characters, as integers; its target is the character that follows. The model looks up an embedding for each
character and feeds them to a small network (Bengio et al., 2003). Loss and metric default to classification.
"""

from pathlib import Path

import numpy as np
import torch
from torch import nn

from cfel.errors import InputError
from cfel.learning.data import DataSet
from cfel.learning.task import Task

WINDOW = 6

TEXT = """
the devices at the edge of the network learn together, and none of them gives away what it has seen. each of
them trains for a while on its own samples. then it sends to the edge server what has changed, and the server
takes the mean of the changes. after a few rounds the servers talk to their neighbours, and take the mean of
what the others have found. in the end all of them have the same model, and the model has seen it all.
some of the devices are slow and some of them are fast. some have little energy left and some have enough of
it. the slow ones train for a shorter while, and the ones with a poor link send less of what has changed. the
servers know the time that is left and the energy that is left, and they share both among the rounds that are
left. so the time is not lost on waiting for the slow ones, and the energy is not lost on sending what does
not matter. the mean of the changes is a little less exact, but there are more of them, and that is better.
"""


def build(path: Path | None) -> Task:
    """Builds the task from a text of at least a hundred characters."""
    text = TEXT if path is None else path.read_text(encoding="utf-8")
    text = " ".join(text.split())
    if len(text) < 100:
        raise InputError(f"{path}: {len(text)} characters are too few to learn from")
    return Task(_windows(text), _network)


def _windows(text: str) -> DataSet:
    """All windows of the text; the last fifth is for testing."""
    alphabet, codes = np.unique(np.array(list(text)), return_inverse=True)
    windows = np.lib.stride_tricks.sliding_window_view(codes.astype(np.int64), WINDOW + 1)
    inputs, targets = torch.from_numpy(windows[:, :-1].copy()), torch.from_numpy(windows[:, -1].copy())
    cut = len(windows) * 4 // 5
    return DataSet("text", inputs[:cut], targets[:cut], inputs[cut:], targets[cut:], classes=len(alphabet))


def _network(input_shape: tuple[int, ...], characters: int) -> nn.Module:
    width = 8
    table = nn.Embedding(characters, width)
    hidden = nn.Linear(input_shape[0] * width, 64)
    return nn.Sequential(table, nn.Flatten(), hidden, nn.ReLU(), nn.Linear(64, characters))
