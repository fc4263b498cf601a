"""Energy counter of NVIDIA GPUs, through NVML. Optional: without the package `pynvml` there is none."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

_MILLI = 1e-3


@dataclass(slots=True)
class GpuCounter:
    """NVML's millijoules since the driver was loaded, of all GPUs of the host.

    Attributes:
        nvml: the module, initialised.
        handles: the GPUs.
    """

    nvml: Any
    handles: tuple[Any, ...]
    _last: float | None = None

    @property
    def source(self) -> str:
        """NVML."""
        return "nvml"

    def joules(self, now: float) -> float | None:
        """See `EnergyCounter`."""
        del now
        before, self._last = self._last, self._read()
        return None if before is None or self._last is None else self._last - before

    def _read(self) -> float | None:
        try:
            shown = [self.nvml.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in self.handles]
        except self.nvml.NVMLError:
            return None
        return float(_MILLI * sum(shown))


def find_gpu_counter(module: str = "pynvml") -> tuple[GpuCounter | None, str]:
    """Finds the GPUs' counter, or says why there is none.

    Args:
        module: NVML's Python module.
    """
    try:
        nvml = import_module(module)
    except ImportError:
        return None, f"the Python package {module} is not installed"
    try:
        nvml.nvmlInit()
        handles = tuple(nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount()))
    except nvml.NVMLError as error:
        return None, f"NVML: {error}"
    counter = GpuCounter(nvml, handles)
    # GPUs before Volta, and Jetson boards, have no such counter.
    if not handles or (counter.joules(0.0) is None and counter._last is None):
        return None, "no GPU here has an energy counter"
    return counter, ""
