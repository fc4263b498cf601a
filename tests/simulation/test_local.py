"""What devices do in a run: estimates, momentum, residuals, step rules, compressors, and where they begin."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor

from cfel.errors import InputError
from cfel.learning.compressors import Update, topk
from cfel.learning.device import device_estimate
from cfel.learning.local.workspace import Workspace
from cfel.learning.models.files import load_model, save_model
from cfel.simulation.loop import run_edge_round
from cfel.simulation.state import initial_state
from tests.simulation.drive import Listening, column, outcomes, records, timeless, tiny


def test_estimates_are_reused_but_for_the_first() -> None:
    """The first plan rests on a fresh estimate; later ones on what the steps yield."""
    reuse, fresh = (records(tiny(local={"estimator": kind})) for kind in ("reuse", "fresh"))
    assert all(line.sigma2 > 0 and line.g2 > 0 for line in (*reuse, *fresh))
    assert [line.sigma2 for line in reuse] != [line.sigma2 for line in fresh]
    one = {"rounds": {"global": 1, "edge": 1}}
    first, same = (records(tiny(one, local={"estimator": kind}))[0] for kind in ("reuse", "fresh"))
    assert (first.sigma2, first.g2) == (same.sigma2, same.g2)


def test_fresh_estimates_are_made_at_the_edge_model() -> None:
    """What a device remembers after an edge round is what `device_estimate` gives at its beginning."""
    experiment = tiny(local={"estimator": "fresh", "fresh_batches": 3}, scheme={"name": "cef"})
    world = experiment.build_world()
    with Listening(world, experiment) as executor:
        state = initial_state(world)
        for edge_round in range(2):
            state, outcome = run_edge_round(world, executor, state, edge_round)
    workspace = Workspace(world.task, world.training, world.compress)
    expected = [device_estimate(order, world.data[order.device], workspace) for order in executor.orders[6:]]
    assert [each.estimates for each in state.devices] == expected
    assert outcome.plan.sigma2 == pytest.approx(np.mean([each.sigma2 for each in expected if each]))


def test_momentum_is_kept_or_reset() -> None:
    keep, reset, none = (
        outcomes(tiny(scheme={"name": "cef"}, local=local))
        for local in ({"momentum_state": "keep"}, {"momentum_state": "reset"}, {"momentum": 0.0})
    )
    assert all("momentum" in device.memory for device in keep[-1].state.devices)
    assert all(not device.memory for device in (*reset[-1].state.devices, *none[-1].state.devices))
    assert len({each[-1].record.model_sha256 for each in (keep, reset, none)}) == 3
    assert (keep[-1].record.loss or 0) < (reset[-1].record.loss or 0)


Given = dict[int, Tensor]


@pytest.fixture
def overheard(monkeypatch: pytest.MonkeyPatch) -> Given:
    """Every vector handed to a compressor called "overheard:topk", by the key of its stream."""
    given: Given = {}

    def listening(vector: Tensor, theta: float, key: int) -> Update:
        given[key] = vector.clone()
        return topk(vector, theta, key)

    module = ModuleType("overheard")
    monkeypatch.setattr(module, "topk", listening, raising=False)
    monkeypatch.setitem(sys.modules, "overheard", module)
    return given


@pytest.mark.parametrize("engine", ["threads", "batched"])
def test_error_feedback_sends_what_was_dropped(overheard: Given, engine: str) -> None:
    """Residual = what was to be sent − what was sent; it is added to what is to be sent next.

    The second edge round is run twice from the same state, with the residuals and without them.
    """
    experiment = tiny(
        scheme={"name": "cef_c"},
        local={"momentum": 0.0},
        compression={"kind": "overheard:topk", "error_feedback": True},
        simulation={"engine": engine, "workers": 1},  # more of them are processes, and not overheard
    )
    world = experiment.build_world()
    with Listening(world, experiment) as executor:
        middle, _ = run_edge_round(world, executor, initial_state(world), 0)
        for order, device in zip(executor.orders, middle.devices, strict=True):
            key = order.key("compression")
            rest = overheard[key].clone()
            topk(overheard[key], order.theta, key).add_to(rest, -1.0)
            assert device.residual is not None
            assert torch.equal(device.residual, rest)
        assert any(order.theta < 1 for order in executor.orders)
        kept = [
            torch.zeros(()) if each.residual is None else each.residual.clone() for each in middle.devices
        ]
        run_edge_round(world, executor, middle, 1)
        sent = [overheard[order.key("compression")] for order in executor.orders[6:]]
        forgetful = replace(middle, devices=tuple(replace(each, residual=None) for each in middle.devices))
        run_edge_round(world, executor, forgetful, 1)
        learned = [overheard[order.key("compression")] for order in executor.orders[12:]]
    for residual, whole, new in zip(kept, sent, learned, strict=True):
        torch.testing.assert_close(whole, new + residual)


def test_systematic_steps() -> None:
    """⌊ρτ⌋ or ⌈ρτ⌉ of them, whatever is drawn."""
    experiment = tiny(local={"steps": "systematic"}, rounds={"local": 5})
    tables = [each.plans for each in outcomes(experiment)]
    asked, taken = 5 * column(tables, "rho"), column(tables, "steps")
    assert (np.floor(asked - 1e-9) <= taken).all()
    assert (taken <= np.ceil(asked + 1e-9)).all()
    assert len(set(taken)) > 1


@pytest.mark.parametrize("kind", ["topk", "randomk", "jl", "quantise", "uveqfed", "atomo", "none"])
@pytest.mark.parametrize("feedback", [False, True])
def test_every_compressor_learns(kind: str, feedback: bool) -> None:
    """From one in ten right to clearly more, at the plans of CEF-C; without compression at those of CEF."""
    compression = {"kind": kind, "error_feedback": feedback}
    scheme = {"name": "cef" if kind == "none" else "cef_c"}
    log = records(tiny(rounds={"global": 4}, scheme=scheme, compression=compression))
    full = (6 * 2 + 3 * 2) * 4 * 4810
    assert (log[-1].accuracy or 0) > 0.3
    assert (log[-1].loss or 0) < 0.9 * (log[0].loss or 0)
    assert all((line.wire_bytes == full) == (kind == "none") for line in log)


def test_a_scheme_that_chooses_what_is_sent_needs_a_compressor() -> None:
    """It would be charged θν for an upload of everything."""
    with pytest.raises(InputError, match="'none': scheme 'hcef'"):
        tiny(compression={"kind": "none"})


def test_starting_from_a_saved_model(tmp_path: Path) -> None:
    """Saved as it would have begun, the run is the same; saved when trained, it begins better."""
    plain = tiny()
    world = plain.build_world()
    file = tmp_path / "start.safetensors"
    save_model(file, world.start, world.task.build())
    found = outcomes(tiny(model={"init": str(file)}))
    assert timeless([each.record for each in found]) == timeless(records(plain))
    save_model(file, found[-1].state.models[0], world.task.build())
    assert torch.equal(load_model(file, world.task.build()).parameters, found[-1].state.models[0].parameters)
    better = records(tiny(model={"init": str(file)}))
    assert (better[0].accuracy or 0) > (found[0].record.accuracy or 0)


def test_a_saved_model_must_fit(tmp_path: Path) -> None:
    world = tiny().build_world()
    file = tmp_path / "start.safetensors"
    save_model(file, world.start, world.task.build())
    with pytest.raises(InputError, match="the model has shape"):
        tiny(model={"name": "small_cnn", "init": str(file)}).build_world()
    with pytest.raises(InputError, match="it does not exist"):
        tiny(model={"init": str(tmp_path / "none")}).build_world()


def test_batch_norm_runs_in_processes() -> None:
    """A model with statistics of its own is trained device by device, and they are averaged."""
    experiment = tiny(
        rounds={"global": 1, "edge": 1, "local": 1},
        fleet={"devices": 2, "clusters": 1},
        data={"name": "images:load", "batch": 4, "partition": "iid"},
        model={"name": "resnet20"},
        scheme={"name": "cef"},
        simulation={"engine": "auto", "evaluate_samples": 4},
    )
    world = experiment.build_world()
    assert experiment.resolve(world).simulation.engine == "processes"
    outcome = outcomes(experiment, world)[0]
    assert outcome.state.models[0].buffers.numel() > 0
    assert not torch.equal(outcome.state.models[0].buffers, world.start.buffers)


@pytest.fixture(autouse=True)
def _images(monkeypatch: pytest.MonkeyPatch) -> None:
    """A data set of 16×16 pixels under the name "images:load"."""
    from cfel.learning.data import DataSet, synthetic

    module = ModuleType("images")
    load: Callable[[Path | None], DataSet] = lambda _: synthetic(60, (3, 16, 16), classes=4)  # noqa: E731
    monkeypatch.setattr(module, "load", load, raising=False)
    monkeypatch.setitem(sys.modules, "images", module)


def test_batch_norm_cannot_be_batched() -> None:
    experiment = tiny(
        rounds={"global": 1},
        fleet={"devices": 2, "clusters": 1},
        data={"name": "images:load", "batch": 4, "partition": "iid"},
        model={"name": "resnet20"},
        simulation={"engine": "batched"},
    )
    message = r"the batch-norm statistics of the model would change.*use --engine threads"
    with pytest.raises(InputError, match=message):
        outcomes(experiment)


@pytest.mark.parametrize("device", ["nonsense", "cuda:99"])
def test_a_torch_device_that_is_not_there(device: str) -> None:
    with pytest.raises(InputError, match=f"simulation.device = '{device}'"):
        outcomes(tiny(simulation={"device": device}))
