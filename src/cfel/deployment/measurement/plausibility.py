"""What a device reports about itself, bounded by what others see; pure.

Nobody can check a device's joules, but others know what they should be about: the experiment's model says how
this device compares with the others (its class), and the other devices say how far the model is from reality.
Seconds are checked by the edge server's clock. A figure beyond its bounds is replaced by the bound, so that
one device can neither use up a budget nor lower what is asked of the others. A report far beyond them is
charged what such work usually costs. Bounds of single figures multiply, so a device's joules are also bounded
over the whole run. Honest figures pass unchanged, with one exception: a device is taken to be at most as fast
as the fastest of the others, relative to its class, because some schemes measure all devices by the fastest.

Two devices that contradict each other cannot be told apart: with fewer than three only the clock counts.
"""

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from cfel.arrays import BoolArray, FloatArray
from cfel.control.setting import Setting
from cfel.deployment.measurement.measured_rounds import FederationMeasurements, JouleAccount
from cfel.deployment.protocol.device_requests import MeasurementReport
from cfel.system.conditions import Conditions

_FIELDS = ("mu", "alpha", "nu", "power")
_LEAST_REPORTS = 3
_MOST_ROUNDS = 9
# Devices report running means, which follow a change of pace only within a few rounds.
_LAG = 2.0
_SAME = 1e-9

SLOW_STEPS = "its seconds per step are implausible"
FAST_STEPS = "its steps are implausibly fast"
STEP_JOULES = "its joules per step are implausible"
SLOW_UPLOAD = "its seconds per upload are implausible"
SENDING_WATTS = "its watts while sending are implausible"
LONG_TRAINING = "it reports more seconds than have passed"
ROUND_JOULES = "its joules are implausible"

_ENERGY_REASONS = {STEP_JOULES, SENDING_WATTS, ROUND_JOULES}


@dataclass(frozen=True, slots=True)
class ObservedWork:
    """What an edge server saw of one order.

    Attributes:
        seconds: from the order to its answer, by the edge server's clock; 0 if unknown.
        steps: local steps taken, in steps on full batches, or gradients of an estimate.
        gradients: steps, and gradients of estimates whose energy may be in the same report.
        share: how much of a full upload arrived.
    """

    seconds: float
    steps: float
    gradients: float
    share: float


@dataclass(frozen=True, slots=True)
class BoundedReports:
    """The reports of one round as they are used.

    Attributes:
        reports: by device.
        reasons: which device reported what that was implausible.
        accounts: of all devices, with this round's joules.
    """

    reports: dict[int, MeasurementReport]
    reasons: list[tuple[int, str]]
    accounts: tuple[JouleAccount, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Range:
    """Plausible values of one figure, per device.

    Attributes:
        low, high: a value is kept between these.
        least: the least of the other devices, relative to its class.
        model: the experiment's own value where the fleet agrees with the model, NaN elsewhere.
    """

    low: FloatArray
    high: FloatArray
    least: FloatArray
    model: FloatArray

    def raise_value(self, device: int, value: float) -> float:
        """The value, but not below what the others allow."""
        if self._is_modelled(device, value):
            return value
        return max(value, float(self.low[device]), float(self.least[device]))

    def limit(self, device: int, value: float) -> float:
        """The highest plausible value, or the value itself where the experiment says just that."""
        return value if self._is_modelled(device, value) else float(self.high[device])

    def find_reference(self, device: int, value: float, spread: float) -> float:
        """What the value should be about: the largest reference, or what the experiment says."""
        return value if self._is_modelled(device, value) else float(self.high[device]) / spread

    def _is_modelled(self, device: int, value: float) -> bool:
        return bool(abs(value - self.model[device]) <= _SAME * value)


def usual_conditions(setting: Setting) -> Conditions:
    """Each device's usual figures in the experiment's model: medians over some rounds.

    A single round says little about a device where conditions are drawn again in every round.
    """
    rounds = range(min(_MOST_ROUNDS, setting.rounds.global_rounds))
    seen = [setting.conditions(number, 0) for number in rounds]
    columns = {name: np.median([getattr(each, name) for each in seen], axis=0) for name in _FIELDS}
    return Conditions(**columns, available=np.ones(setting.fleet.devices, dtype=bool))


def bound_reports(
    fresh: Mapping[int, MeasurementReport],
    known: FederationMeasurements,
    observed: Mapping[int, ObservedWork],
    usual: Conditions,
    now: Conditions,
    spread: float,
) -> BoundedReports:
    """Bounds the reports of one round.

    Args:
        fresh: as they came, by device.
        known: every device's previous report, bounded, and its account.
        observed: what edge servers saw of the same orders.
        usual: of `usual_conditions`.
        now: the model's figures of this round.
        spread: how far a figure may be from its reference, as a factor of at least 1; a figure that is
            another `spread` beyond that is reported as implausible. Over a run, a device's joules may be
            √`spread` times the reference.
    """
    # Also devices that did not report now: the more there are to compare with, the less one can shift the
    # median.
    newest = [fresh.get(device, before) for device, before in enumerate(known.devices)]
    ranges = {name: _find_range(name, newest, usual, now, spread) for name in _FIELDS}
    reports, reasons = {}, []
    accounts = [known.find_account(device) for device in range(len(newest))]
    for device, report in sorted(fresh.items()):
        work = observed.get(device, ObservedWork(0.0, 0, 0, 0.0))
        bounded, found = _bound_report(device, report, work, ranges, spread)
        costs = _find_usual_costs(device, report, bounded, ranges, spread)
        if _ENERGY_REASONS.intersection(found):
            bounded = _charge_usual(bounded, costs, work)
        reports[device], accounts[device] = _limit_joules(bounded, costs, work, accounts[device], spread)
        reasons += [(device, reason) for reason in found]
    return BoundedReports(reports, reasons, tuple(accounts))


@dataclass(frozen=True, slots=True)
class _UsualCosts:
    """What a device's work should cost: joules per step, watts while sending, seconds per upload."""

    alpha: float
    power: float
    nu: float

    def count_joules(self, work: ObservedWork) -> float:
        return self.alpha * max(1, work.gradients) + self.power * self.nu * work.share


def _find_usual_costs(
    device: int,
    report: MeasurementReport,
    bounded: MeasurementReport,
    ranges: Mapping[str, _Range],
    spread: float,
) -> _UsualCosts:
    alpha = ranges["alpha"].find_reference(device, report.alpha, spread)
    power = ranges["power"].find_reference(device, report.power, spread)
    nu = ranges["nu"].find_reference(device, report.nu, spread)
    # Beyond its limit, the clock has vouched for the time of an upload.
    return _UsualCosts(alpha, power, bounded.nu if bounded.nu > ranges["nu"].limit(device, report.nu) else nu)


def _charge_usual(report: MeasurementReport, costs: _UsualCosts, work: ObservedWork) -> MeasurementReport:
    """The report with usual joules per step and watts, where they are known."""
    alpha = costs.alpha if math.isfinite(costs.alpha) else report.alpha
    power = costs.power if math.isfinite(costs.power) else report.power
    joules = min(report.joules, alpha * max(1, work.gradients))
    return msgspec.structs.replace(report, alpha=alpha, power=power, joules=joules)


def _limit_joules(
    report: MeasurementReport, costs: _UsualCosts, work: ObservedWork, before: JouleAccount, spread: float
) -> tuple[MeasurementReport, JouleAccount]:
    """Scales a report down to what its device may still be charged; the account with this round."""
    joules = report.joules + report.power * report.nu * work.share
    # Where nobody knows what is usual, what is charged counts as usual.
    usual = costs.count_joules(work)
    usual = usual if math.isfinite(usual) else joules
    allowed = max(usual, math.sqrt(spread) * (before.usual + usual) - before.charged)
    if joules > allowed:
        scale, joules = allowed / joules, allowed
        training = report.joules * scale
        # Planned with what it is charged: a plan for more would leave a part of the budget unused.
        alpha = min(report.alpha, max(costs.alpha, training / max(1, work.gradients)))
        report = msgspec.structs.replace(report, alpha=alpha, power=report.power * scale, joules=training)
    return report, JouleAccount(before.charged + joules, before.usual + usual)


def _bound_report(
    device: int, report: MeasurementReport, work: ObservedWork, ranges: Mapping[str, _Range], spread: float
) -> tuple[MeasurementReport, list[str]]:
    seconds = min(report.seconds, work.seconds) if work.seconds else report.seconds
    mu = _bound_pace(device, report.mu, work, ranges["mu"])
    most_alpha = ranges["alpha"].limit(device, report.alpha)
    alpha = min(ranges["alpha"].raise_value(device, report.alpha), most_alpha)
    gradients = max(1, work.gradients)
    joules = min(report.joules, _LAG * most_alpha * gradients)
    if joules > _LAG * alpha * gradients:
        # It charges more per step than it reports: it is planned with what it charges.
        alpha = min(joules / gradients, most_alpha)
    training = max(seconds, mu * work.steps)
    nu = _bound_upload(device, report.nu, work, training, ranges["nu"])
    most_power = ranges["power"].limit(device, report.power)
    # The clock vouches for a slow upload, but not for more than the usual watts while it lasts.
    usual_power = ranges["power"].find_reference(device, report.power, spread)
    slow = max(1.0, ranges["nu"].limit(device, report.nu) / nu) if nu else math.inf
    power = min(report.power, most_power, usual_power * slow)
    # Bounded at once, but called implausible only well beyond: honest measurements are noisy.
    found = {
        SLOW_STEPS: report.mu > spread * max(mu, ranges["mu"].high[device]),
        FAST_STEPS: spread * report.mu < min(mu, ranges["mu"].low[device]),
        STEP_JOULES: report.alpha > spread * most_alpha,
        SLOW_UPLOAD: report.nu > spread * max(nu, ranges["nu"].high[device]),
        SENDING_WATTS: report.power > spread * most_power,
        LONG_TRAINING: report.seconds > seconds,
        ROUND_JOULES: report.joules > spread * joules,
    }
    bounded = msgspec.structs.replace(
        report, mu=mu, alpha=alpha, nu=nu, power=power, seconds=seconds, joules=joules
    )
    return bounded, [reason for reason, applies in found.items() if applies]


def _bound_pace(device: int, mu: float, work: ObservedWork, usual: _Range) -> float:
    """Seconds per step: a slow device is believed as far as its edge server really waited for it."""
    most = usual.limit(device, mu)
    if work.seconds and work.steps:
        most = _LAG * work.seconds / work.steps
    return min(usual.raise_value(device, mu), most)


def _bound_upload(device: int, nu: float, work: ObservedWork, training: float, usual: _Range) -> float:
    """Seconds per upload: more than usual only as far as the wait beyond training leaves room for it."""
    most = usual.limit(device, nu)
    if work.seconds and work.share:
        most = max(most, _LAG * (work.seconds - training) / work.share)
    return min(nu, most)


def _find_range(
    name: str,
    newest: Sequence[MeasurementReport | None],
    usual: Conditions,
    now: Conditions,
    spread: float,
) -> _Range:
    """The plausible values of one figure; anything where too few devices report it."""
    devices = len(newest)
    values = np.array([np.nan if each is None else getattr(each, name) for each in newest])
    reference: FloatArray = getattr(usual, name)
    # Counters with coarse steps report zeros for a while, which are no measure for the others.
    counted = np.nan_to_num(values) > 0
    if counted.sum() < _LEAST_REPORTS or not (reference > 0).all():
        nothing = np.zeros(devices)
        return _Range(nothing, np.full(devices, np.inf), nothing, np.full(devices, np.nan))
    ratios = values / reference
    alike, scale = float(np.median(values[counted])), float(np.median(ratios[counted]))
    # Whichever is further: the model may know of classes that devices belong to, or may not.
    low = np.minimum(alike, scale * reference) / spread
    high = np.maximum(alike, scale * reference) * spread
    least = np.minimum(_least_of_others(values, counted), reference * _least_of_others(ratios, counted))
    # Only where the model describes these machines may a figure be taken from it unchanged.
    agrees = 1 / spread <= scale <= spread
    return _Range(low, high, least, getattr(now, name) if agrees else np.full(devices, np.nan))


def _least_of_others(values: FloatArray, counted: BoolArray) -> FloatArray:
    # A device is compared with the others, so the fastest one with the second fastest.
    first, second = np.partition(values[counted], 1)[:2]
    least: FloatArray = np.where(counted & (values == first), second, first)
    return least


class Doubts:
    """How often each device reported something implausible; those who keep doing so are left out.

    A plausible report takes one back, so that an honest device never gets there. It begins anew with every
    coordinator, as rejected uploads do with every edge server.

    Args:
        quarantine_after: so many lead to quarantine; 0 for never.
        on_quarantine: called once for each device that is left out from now on.
    """

    def __init__(self, quarantine_after: int, on_quarantine: Callable[[int], None]) -> None:
        self._most, self._on_quarantine = quarantine_after, on_quarantine
        self._counts: dict[int, int] = {}

    def add(self, reported: Iterable[int], implausible: Container[int]) -> None:
        """Counts the reports of one edge round."""
        quarantined = self.find_quarantined()
        for device in set(reported).difference(quarantined):
            before = self._counts.get(device, 0)
            self._counts[device] = before + 1 if device in implausible else max(0, before - 1)
        for device in self.find_quarantined():
            if device not in quarantined:
                self._on_quarantine(device)

    def find_quarantined(self) -> list[int]:
        """The devices to leave out, in order."""
        return sorted(n for n, count in self._counts.items() if self._most and count >= self._most)
