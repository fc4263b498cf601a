"""What other edge servers did wrong: invalid models and answers, commands and votes that they may not send.

An edge server continues without what was wrong; an operator learns of it here. Who is merely silent is
not listed here, see `peer_monitor`.
"""

import logging
from collections.abc import Callable
from typing import Literal

_LOG = logging.getLogger(__name__)
SHOWN_SECONDS = 300.0
"""How long a fault is shown after it was last seen."""

Fault = Literal["model", "command", "vote", "answer"]


class PeerFaults:
    """Faults of other edge servers.

    Args:
        now: a monotonic clock.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._seen: dict[tuple[int, Fault], tuple[float, str]] = {}

    def note(self, number: int, fault: Fault, what: str) -> None:
        """Notes what an edge server did wrong; the newest fault of each kind is shown."""
        text = f"edge-{number} {what}"
        if text not in self._list_recent():
            _LOG.warning("%s", text)
        self._seen[number, fault] = self._now(), text

    def clear(self, number: int, fault: Fault) -> None:
        """It has done this right since."""
        self._seen.pop((number, fault), None)

    @property
    def problem(self) -> str:
        """Recent faults in words; empty if there are none."""
        return "; ".join(self._list_recent())

    def _list_recent(self) -> list[str]:
        oldest = self._now() - SHOWN_SECONDS
        return [text for _, (at, text) in sorted(self._seen.items()) if at >= oldest]
