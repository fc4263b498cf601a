"""NVML's counter, with a module in its place."""

import sys
from types import SimpleNamespace

import pytest

from cfel.deployment.measurement.energy_counters import find_gpu_counter


class NVMLError(Exception):
    """As NVML's own."""


def install(monkeypatch: pytest.MonkeyPatch, readings: list[int | None], gpus: int = 1) -> None:
    def read(_: int) -> int:
        value = readings.pop(0)
        if value is None:
            raise NVMLError("Not Supported")
        return value

    module = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: gpus,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetTotalEnergyConsumption=read,
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)


def test_counts_the_joules_of_all_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, [1000, 2000, 1500, 4000, None], gpus=2)
    counter, reason = find_gpu_counter()
    assert counter is not None
    assert reason == ""
    assert counter.joules(0.0) == pytest.approx(2.5)
    assert counter.joules(1.0) is None


def test_says_why_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_gpu_counter("no_such_nvml") == (None, "the Python package no_such_nvml is not installed")
    install(monkeypatch, [None])
    assert find_gpu_counter() == (None, "no GPU here has an energy counter")
    install(monkeypatch, [], gpus=0)
    assert find_gpu_counter() == (None, "no GPU here has an energy counter")
