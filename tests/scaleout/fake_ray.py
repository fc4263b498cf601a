"""A fake of Ray's functions in this process: it computes everything immediately, and workers die on request.

It shows what happens when workers die at a given moment. `test_faults` tests the same with Ray itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import RayActorError, RayTaskError

HERE = "ab" * 28
"""The only node, named as Ray names nodes."""


class Reference:
    """A value, or the error that getting it raises."""

    def __init__(self, value: Any = None, error: Exception | None = None) -> None:
        self.value, self.error = value, error


@dataclass
class FakeRay:
    """The part of Ray that cfel uses.

    Attributes:
        cores: of each node.
        deaths: numbers of the calls, from 1, that kill their worker.
        putting: called with everything that is put.
        ready: whether workers ever become ready.
        calls: how many there were.
    """

    cores: dict[str, int] = field(default_factory=lambda: {HERE: 2})
    deaths: set[int] = field(default_factory=set)
    putting: Callable[[Any], None] = lambda _: None
    ready: bool = True
    calls: int = 0

    def put(self, value: Any) -> Reference:
        """See Ray."""
        self.putting(value)
        return Reference(value)

    def get(self, reference: Reference) -> Any:
        """See Ray."""
        if reference.error is not None:
            raise reference.error
        return reference.value

    def wait(
        self, references: Sequence[Reference], num_returns: int = 1, timeout: float | None = None
    ) -> tuple[list[Reference], list[Reference]]:
        """See Ray."""
        if not self.ready and timeout is not None:
            return [], list(references)
        return list(references[:num_returns]), list(references[num_returns:])

    def remote(self, body: Callable[..., Any]) -> Any:
        """See Ray."""

        def options(**_: Any) -> Any:
            return SimpleNamespace(remote=lambda *given: self._start(body, given))

        return SimpleNamespace(options=options)

    def nodes(self) -> list[dict[str, Any]]:
        """See Ray."""
        return [{"NodeID": n, "Alive": True, "Resources": {"CPU": c}} for n, c in self.cores.items()]

    def _start(self, body: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        if isinstance(body, type):
            return Handle(self, body(*given))
        return self.call(body, given)

    def call(self, function: Callable[..., Any], given: tuple[Any, ...], counts: bool = True) -> Reference:
        """Calls a function, unless this call kills the worker."""
        self.calls += counts
        if counts and self.calls in self.deaths:
            return Reference(error=RayActorError())
        try:
            return Reference(
                function(*(each.value if isinstance(each, Reference) else each for each in given))
            )
        except Exception as error:  # noqa: BLE001 — Ray passes on any exception
            return Reference(error=RayTaskError("function", "trace", error))


class Handle:
    """A worker; `ready` does not count as a call."""

    def __init__(self, fake_ray: FakeRay, worker: Any) -> None:
        self._fake_ray, self._worker = fake_ray, worker

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._worker, name)
        return SimpleNamespace(remote=lambda *given: self._fake_ray.call(method, given, name != "ready"))


def install(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    """Replaces Ray by a fake."""
    fake_ray = FakeRay()
    for name in ("put", "get", "wait", "remote", "nodes"):
        monkeypatch.setattr(ray, name, getattr(fake_ray, name))
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "available_resources", lambda: {"CPU": 0.0})
    monkeypatch.setattr(ray, "kill", lambda _: None)
    monkeypatch.setattr(ray, "cancel", lambda _: None)
    monkeypatch.setattr(ray.util, "register_serializer", lambda *_, **__: None)
    context = SimpleNamespace(get_node_id=lambda: HERE)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    return fake_ray
