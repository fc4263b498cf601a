"""The benchmark of GPUs: what it says without one, and that it measures what it says, on the CPU."""

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.gpu import measure_setting
from benchmarks.settings import BenchSetting


def test_without_a_gpu_it_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["gpu", "--quick"]) == 0
    assert "no GPU here" in capsys.readouterr().out


def test_engines_are_compared_with_threads_on_the_cpu() -> None:
    """With the CPU in place of a GPU, threads differ by nothing and batched training by rounding."""
    tiny = BenchSetting(
        "tiny", "mlp", (1, 8, 8), 10, devices=4, clusters=2, samples=8, batch=4, edge_rounds=1
    )
    one, two, three = measure_setting(tiny, "cpu", batched=True, rounds=1)
    assert (one.engine, two.engine, three.engine) == ("threads", "threads", "batched")
    assert one.difference == two.difference == 0
    assert 0 <= three.difference < 1e-3
    assert one.repeats
    assert three.repeats
