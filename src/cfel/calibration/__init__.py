"""Measures this machine and describes it as a device class: `cfel calibrate`."""

from cfel.calibration.bandwidth import BandwidthServer, measure_bandwidth
from cfel.calibration.machine import Calibration, CalibrationOptions, calibrate

__all__ = ["BandwidthServer", "Calibration", "CalibrationOptions", "calibrate", "measure_bandwidth"]
