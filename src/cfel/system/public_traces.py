"""Published traces of phones, converted to tables that `device_tables` and `availability` read.

    FLASH      state traces, JSON: a log of each phone's charger, network and screen (Yang et al.:
               Characterizing impacts of heterogeneity in federated learning upon large-scale smartphone data,
               WWW 2021)
    FedScale   pickles: when each client was there, and how fast it computes and sends (Lai et al.: FedScale:
               benchmarking model and system performance of federated learning at scale, ICML 2022)

The data are not part of cfel. A pickle can run any code, so only plain values are read.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from cfel import validation
from cfel.errors import FleetFileError, describe_error
from cfel.validation import Range, check_fields, load_pickle
from cfel.wording import show

TRAINING_PER_INFERENCE = 3.0
"""Time of a training step over that of an inference, as FedScale assumes."""

BITS_PER_KILOBIT = 1024
"""As in FedScale's simulator."""

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class PublicAvailability:
    """When devices were there."""

    # Start and end in seconds, for each device that was there at all.
    intervals: tuple[tuple[Interval, ...], ...]
    left_out: int  # how many devices never were, or have a log that cannot be read

    def to_csv(self) -> str:
        """The table that `fleet.availability.file` names."""
        rows = (
            f"{device},{start:.12g},{end:.12g}"
            for device, own in enumerate(self.intervals)
            for start, end in own
        )
        return "\n".join(["device,start,end", *rows, ""])


@dataclass(frozen=True, slots=True)
class PublicCapacity:
    """How fast devices are: milliseconds of an inference, and kilobits per second, of each."""

    speeds: tuple[tuple[float, float], ...]

    def to_csv(self, work: "Work") -> str:
        """The table that `fleet.conditions.file` names."""
        lines = ["device,mu,alpha,nu,power"]
        for device, (milliseconds, kilobits) in enumerate(self.speeds):
            mu = TRAINING_PER_INFERENCE * work.batch * milliseconds / 1000
            nu = work.model_bits / (kilobits * BITS_PER_KILOBIT)
            alpha = mu * work.compute_watts
            lines.append(f"{device},{mu:.9g},{alpha:.9g},{nu:.9g},{work.radio_watts:.9g}")
        return "\n".join([*lines, ""])


@dataclass(frozen=True, slots=True)
class Work:
    """What the devices of a trace do, and the power that it does not tell."""

    batch: Annotated[int, Range(least=1)]  # samples of a local step
    model_bits: Annotated[float, Range(above=0)]  # size of a full upload
    compute_watts: Annotated[float, Range(least=0)]  # power while training
    radio_watts: Annotated[float, Range(least=0)]  # power while sending

    def __post_init__(self) -> None:
        check_fields("work", self)


def read_public_trace(path: str | Path) -> PublicAvailability | PublicCapacity:
    """Reads a published trace; its content says which one it is."""
    file = Path(path)
    try:
        with file.open("rb") as content:
            is_json = content.read(1) in (b"{", b" ", b"\n", b"\r", b"\t")
            content.seek(0)
            found = json.load(content) if is_json else load_pickle(file, "a trace of FedScale")
    except (OSError, ValueError, RecursionError) as error:
        raise FleetFileError(f"{file}: cannot be read: {describe_error(error)}") from error
    if not isinstance(found, Mapping) or not found:
        raise FleetFileError(f"{file}: must hold a record per device, holds {type(found).__name__}")
    first = next(iter(found.values()))
    keys = first.keys() if isinstance(first, Mapping) else ()
    records = [(name, each if isinstance(each, Mapping) else {}) for name, each in found.items()]
    if "computation" in keys:
        return PublicCapacity(tuple(_read_speed(f"{file}: device {name}", each) for name, each in records))
    if "messages" not in keys and "active" not in keys:
        raise FleetFileError(
            f"{file}: is neither a state trace of FLASH ('messages') nor a trace of FedScale ('active', or "
            "'computation' and 'communication')"
        )
    read = _read_log if "messages" in keys else _read_pairs
    intervals = [tuple(read(f"{file}: device {name}", each)) for name, each in records]
    there = tuple(own for own in intervals if own)
    if not there:
        raise FleetFileError(f"{file}: no device is ever there")
    return PublicAvailability(there, len(intervals) - len(there))


def _read_speed(where: str, record: Mapping[str, Any]) -> tuple[float, float]:
    milliseconds, kilobits = (
        validation.check_number(f"{where}: {key}", record.get(key), above=0)
        for key in ("computation", "communication")
    )
    return milliseconds, kilobits


def _read_pairs(where: str, record: Mapping[str, Any]) -> Iterator[Interval]:
    """FedScale's lists of moments when a client came and went; an interval may be empty."""
    came, went = (validation.check_list(f"{where}: {key}", record.get(key)) for key in ("active", "inactive"))
    for start, end in zip(came, went, strict=False):
        begin = validation.check_number(f"{where}: active", start, least=0)
        until = validation.check_number(f"{where}: inactive", end, least=0)
        if begin < until:
            yield begin, until


_CHANGES = {
    "battery_charged_on": ("charged", True),
    "battery_charged_off": ("charged", False),
    "wifi": ("wifi", True),
    **dict.fromkeys(("unknown", "2g", "3g", "4g", "5g"), ("wifi", False)),
    "screen_lock": ("locked", True),
    "screen_unlock": ("locked", False),
}
"""What FLASH's words say; it takes a phone for idle while its screen is locked."""


def _read_log(where: str, record: Mapping[str, Any]) -> list[Interval]:
    """The intervals in which a phone is locked, charged and in a wireless network; none if a line is odd.

    FLASH leaves phones with odd lines out, too.
    """
    state = {"charged": False, "wifi": False, "locked": False}
    found: list[Interval] = []
    since: float | None = None
    now = 0.0
    messages = record.get("messages")
    if not isinstance(messages, str):
        raise FleetFileError(f"{where}: messages = {show(messages)}: must be text")
    for line in filter(str.strip, messages.split("\n")):
        try:
            moment, word = line.split("\t")
            now = (datetime.fromisoformat(moment.strip()) - _EPOCH).total_seconds()
        except (ValueError, TypeError):
            return []
        if change := _CHANGES.get(word.strip().lower()):
            state[change[0]] = change[1]
        if all(state.values()):
            since = now if since is None else since
        elif since is not None:
            found.append((since, now))
            since = None
    if since is not None:
        found.append((since, now))
    return [(start, end) for start, end in found if start < end]


# The log names no time zone; only differences count.
_EPOCH = datetime(2020, 1, 1)
