"""Parts from outside that do not keep to their promise: the error names the part and what was expected."""

import textwrap
from pathlib import Path
from typing import Any

import pytest

from cfel.errors import InputError
from tests.simulation.drive import records, tiny

SCHEME = """
from dataclasses import replace
import numpy as np
from cfel.control.planning import Bounds, plan_round
from cfel.control.scheme import RoundPlan, Scheme, make_empty_plan
whole = Bounds(rho=(1.0, 1.0), theta=(1.0, 1.0))
"""
LEARNING = """
from types import SimpleNamespace
import torch
from torch import nn
from cfel.learning.compressors import DenseUpdate
from cfel.learning.data import DataSet, digits
from cfel.learning.models.builders import mlp
from cfel.learning.task import Task
"""

WRONG: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "scheme-signature": (
        SCHEME,
        "def f(): pass",
        {"scheme": {"name": "{m}:f"}},
        "scheme '{m}:f': is called with (parameters), but its signature is (): too many positional arguments",
    ),
    "scheme-type": (
        SCHEME,
        "def f(parameters): return 3",
        {"scheme": {"name": "{m}:f"}},
        "scheme '{m}:f' returned a int, not a Scheme",
    ),
    "scheme-plan-signature": (
        SCHEME,
        "def f(parameters): return Scheme(dict, lambda state: None)",
        {"scheme": {"name": "{m}:f"}},
        "scheme '{m}:f': plan: is called with (state, observation), but its signature is (state)",
    ),
    "scheme-plan-pair": (
        SCHEME,
        "def f(p): return Scheme(dict, lambda s, o: plan_round(o, p, whole))",
        {"scheme": {"name": "{m}:f"}},
        "scheme '{m}:f': plan returned a RoundPlan, not a pair (plan, state)",
    ),
    "scheme-plan-order": (
        SCHEME,
        "def f(p): return Scheme(dict, lambda s, o: (s, plan_round(o, p, whole)))",
        {"scheme": {"name": "{m}:f"}},
        "scheme '{m}:f': plan, of the pair (plan, state), returned a dict, not a RoundPlan",
    ),
    "scheme-state": (
        SCHEME,
        "def f(p): return Scheme(dict, lambda s, o: (plan_round(o, p, whole), {'a': np.zeros(2)}))",
        {"scheme": {"name": "{m}:f"}},
        "scheme '{m}:f': plan returned a state that is not made of plain JSON values",
    ),
    "scheme-length": (
        SCHEME,
        "def f(p): return Scheme(dict, lambda s, o: (make_empty_plan(2), s))",
        {"scheme": {"name": "{m}:f"}},
        "scheme '{m}:f': rho must be an array with one entry per device (6), is of shape (2,)",
    ),
    "scheme-range": (
        SCHEME,
        "def f(p): return Scheme(dict, lambda s, o: (RoundPlan(np.ones(6), np.zeros(6)), s))",
        {"scheme": {"name": "{m}:f"}},
        "scheme '{m}:f': theta[0] = 0.0: must lie in (0, 1], or be 0 like rho to leave the device out",
    ),
    "scheme-weight": (
        SCHEME,
        "def f(p): return Scheme(dict, lambda s, o: (RoundPlan(*np.ones((2, 6)), weight=np.zeros(6)), s))",
        {"scheme": {"name": "{m}:f"}},
        "scheme '{m}:f': weight[0] = 0.0: must lie in (0, ∞)",
    ),
    "compression-signature": (
        LEARNING,
        "def f(vector, theta): pass",
        {"compression": {"kind": "{m}:f"}},
        "compression '{m}:f': is called with (vector, theta, key), but its signature is (vector, theta)",
    ),
    "compression-type": (
        LEARNING,
        "def f(vector, theta, key): return vector",
        {"compression": {"kind": "{m}:f"}},
        "compression '{m}:f' returned a Tensor, not an update: it has no wire_bits",
    ),
    "compression-length": (
        LEARNING,
        "def f(vector, theta, key): return DenseUpdate(vector[:5].clone())",
        {"compression": {"kind": "{m}:f"}},
        "compression '{m}:f' returned an update of 5 entries for a vector of 4810",
    ),
    "topology-signature": (
        "",
        "def f(clusters): pass",
        {"topology": {"kind": "{m}:f"}},
        "topology '{m}:f': is called with (parameters, clusters, seed), but its signature is (clusters)",
    ),
    "topology-type": (
        "",
        "def f(parameters, clusters, seed): return [(0, 1)]",
        {"topology": {"kind": "{m}:f"}},
        "topology '{m}:f': must give an undirected networkx.Graph, got list",
    ),
    "data-signature": (
        LEARNING,
        "def f(): return digits()",
        {"data": {"name": "{m}:f"}},
        "data '{m}:f': is called with (path), but its signature is ()",
    ),
    "data-type": (
        LEARNING,
        "def f(path): return digits().train_inputs",
        {"data": {"name": "{m}:f"}},
        "data '{m}:f' returned a Tensor, not a DataSet",
    ),
    "model-signature": (
        LEARNING,
        "def f(classes): pass",
        {"model": {"name": "{m}:f"}},
        "model '{m}:f': is called with (input_shape, classes), but its signature is (classes)",
    ),
    "model-type": (
        LEARNING,
        "def f(input_shape, classes): return 'a network'",
        {"model": {"name": "{m}:f"}},
        "model '{m}:f' returned a str, not a Module",
    ),
    "model-shape": (
        LEARNING,
        "def f(input_shape, classes): return nn.Linear(64, classes)",
        {"model": {"name": "{m}:f"}},
        "data 'digits' with model '{m}:f': its model fails on a batch of shape (2, 1, 8, 8): mat1 and mat2",
    ),
    "model-outputs": (
        LEARNING,
        "def f(s, c): return nn.Sequential(nn.Flatten(), nn.Linear(64, c), nn.Unflatten(1, (5, 2)))",
        {"model": {"name": "{m}:f"}},
        "with model '{m}:f': its model returns outputs of shape (5, 2) per sample; must be (10,)",
    ),
    "model-too-few-scores": (
        LEARNING,
        "def f(s, c): return nn.Sequential(nn.Flatten(), nn.Linear(64, 4))",
        {"model": {"name": "{m}:f"}},
        "its model returns outputs of shape (4,) per sample; must be (10,), one score for each of the labels",
    ),
    "model-instance": (
        LEARNING,
        "f = nn.Linear(64, 10)",
        {"model": {"name": "{m}:f"}},
        "model '{m}:f' is a module; must be a function of (input_shape, classes) that builds it",
    ),
    "model-fails": (
        LEARNING,
        "def f(s, c): raise RuntimeError('no weights')",
        {"model": {"name": "{m}:f"}},
        "model '{m}:f' failed in {m}.py, line ",
    ),
    "data-fails": (
        LEARNING,
        "def f(path): return len(path)",
        {"data": {"name": "{m}:f"}},
        "data '{m}:f', called without data.path, failed in {m}.py, line ",
    ),
    "task-fails": (
        LEARNING,
        "def f(path): return len(path)",
        {"data": {"task": "{m}:f"}},
        "task '{m}:f', called without data.path, failed in {m}.py, line ",
    ),
    "data-nan": (
        LEARNING,
        "def f(p): x = torch.ones(9, 4); x[7] = torch.nan; y = torch.zeros(9).long(); "
        "return DataSet('d', x, y, x, y, 3)",
        {"data": {"name": "{m}:f", "partition": "iid"}},
        "train inputs: row 7 holds nan, and so do the model's outputs; leave such rows out",
    ),
    "algorithm-returns": (
        LEARNING,
        "from cfel.learning.local.algorithm import LocalAlgorithm\n"
        "def f(local): return LocalAlgorithm(lambda x, gradient, memory, rate: x - rate * gradient)",
        {"local": {"algorithm": "{m}:f"}},
        "local algorithm: step returned a Tensor, which nothing uses; change x in place",
    ),
    "algorithm-memory": (
        LEARNING,
        "from cfel.learning.local.algorithm import LocalAlgorithm\n"
        "def f(local): return LocalAlgorithm(lambda x, gradient, memory, rate: memory['v'].add_(gradient))",
        {"local": {"algorithm": "{m}:f"}},
        "local algorithm: step asks its memory for 'v', which it does not have",
    ),
    "task-signature": (
        LEARNING,
        "def f(path, more): pass",
        {"data": {"task": "{m}:f"}},
        "task '{m}:f': is called with (path), but its signature is (path, more)",
    ),
    "task-type": (
        LEARNING,
        "def f(path): return digits()",
        {"data": {"task": "{m}:f"}},
        "task '{m}:f' returned a DataSet, not a Task",
    ),
    "task-loss": (
        LEARNING,
        "def f(path): return Task(digits(), mlp, loss=nn.functional.cross_entropy)",
        {"data": {"task": "{m}:f"}},
        "task '{m}:f': loss must return one number per sample, 2 in all, got shape ()",
    ),
    "task-metric": (
        LEARNING,
        "def f(path): return Task(digits(), mlp, metric=lambda outputs, targets: 0.5)",
        {"data": {"task": "{m}:f"}},
        "task '{m}:f': metric must return one number per sample, 2 in all, got a float",
    ),
    "augmentation-signature": (
        LEARNING,
        "def f(batch, generator): return batch",
        {"data": {"augment": "{m}:f"}},
        "augmentation '{m}:f': is called with (), but its signature is (batch, generator)",
    ),
    "augmentation-type": (
        LEARNING,
        "def f(): return 'flip'",
        {"data": {"augment": "{m}:f"}},
        "augmentation '{m}:f' returned a str, not a function",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_part_that_is_wrong(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head, code, change, message = WRONG[case]
    module = f"wrong_{case.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text(textwrap.dedent(head) + code + "\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    named = {
        section: {key: value.format(m=module) for key, value in keys.items()}
        for section, keys in change.items()
    }
    with pytest.raises(InputError) as caught:
        records(tiny(named, rounds={"global": 1, "edge": 1}))
    assert message.format(m=module) in str(caught.value)
