"""Worker processes, forked from this one: each carries out one call after the other.

Small models consist of operations that take microseconds, and two threads that start such operations spend
their time passing Python's interpreter lock back and forth. A child inherits its object (model, data,
plug-ins) as it is in memory, so only orders and results are sent: bytes through a pipe, never through a file
or a network. It ends with this process, however that ends, because the pipe is then closed.

What work is sent to a child is decided in `executors`.
"""

import fcntl
import gc
import io
import multiprocessing
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from multiprocessing.connection import Connection
from operator import attrgetter
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import Tensor

from cfel.errors import CfelError, WorkerError
from cfel.learning.compressors import SparseUpdate
from cfel.learning.device_messages import DeviceReport, DeviceState, Order
from cfel.learning.local.estimates import Estimates
from cfel.learning.models.flat import FlatModel
from cfel.learning.torch_state import prepare_thread

# The most that Linux grants without privileges.
PIPE_BYTES = 1 << 20

Reduction = tuple[Callable[..., Any], tuple[Any, ...]]


def can_fork() -> bool:
    """Whether this system lets a process with torch in it fork (macOS offers it, its libraries break)."""
    return sys.platform.startswith("linux")


class WorkerProcess:
    """A process with a copy of an object, on which it calls methods for us. Not thread-safe.

    Args:
        served: the object; the locks it needs must be free.
        siblings: processes forked before; the new one must not keep their pipes open.
    """

    def __init__(self, served: object, siblings: "Sequence[WorkerProcess]" = ()) -> None:
        context = multiprocessing.get_context("fork")
        (orders, self._orders), (self._results, results) = _open_wide_pipe(), _open_wide_pipe()
        # A child that kept a sibling's pipe open would keep the sibling alive after the parent has ended.
        older = [end for sibling in siblings for end in (sibling._orders, sibling._results)]
        ends = [self._orders, self._results, *older]
        self._process = context.Process(target=_serve, args=(served, orders, results, ends), daemon=True)
        with _pause_garbage_collection():
            self._process.start()
        orders.close()
        results.close()

    def call(self, method: str, *arguments: object) -> Any:  # noqa: ANN401 — whatever the method returns
        """Calls a method of the object; returns what it returns and raises what it raises.

        Raises:
            WorkerError: the process has ended, or failed with an error that is not one of cfel's.
        """
        try:
            self._orders.send_bytes(pack((method, arguments)))
            done, result = pickle.loads(self._results.recv_bytes())  # noqa: S301 — from our own child
        except (EOFError, OSError) as error:
            self._process.join()
            raise WorkerError(
                f"a worker process has ended (exit code {self._process.exitcode}); was there enough memory?"
            ) from error
        if not done:
            raise result
        return result

    def close(self) -> None:
        """Ends the process and waits for it."""
        self._orders.close()
        self._process.join()
        self._results.close()


@contextmanager
def _pause_garbage_collection() -> Iterator[None]:
    """Pauses garbage collection, also in a child that is forked meanwhile; see `_serve`."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _open_wide_pipe() -> tuple[Connection, Connection]:
    """A pipe's ends, reading first. It takes most messages whole, so processes switch less often."""
    reading, writing = multiprocessing.Pipe(duplex=False)
    # The system allows no wide pipe if there are many already; a narrow one works too, only slower.
    with suppress(PermissionError):
        fcntl.fcntl(writing.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return reading, writing


def _serve(served: object, orders: Connection, results: Connection, others: Sequence[Connection]) -> None:
    """Carries out calls until the parent closes the pipe; runs in the child."""
    # Leave the parent's garbage alone: closing its gRPC channel would wait for a thread that is not here.
    gc.freeze()
    gc.enable()
    # Ctrl-C reaches all processes of the terminal; the parent decides when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for other in others:
        other.close()
    prepare_thread()
    while True:
        try:
            method, arguments = pickle.loads(orders.recv_bytes())  # noqa: S301 — from the process we are part of
        except EOFError:
            return
        answer = _call(getattr(served, method), arguments)
        try:
            results.send_bytes(answer)
        except BrokenPipeError:
            return


def _call(method: Callable[..., object], arguments: tuple[object, ...]) -> bytes:
    try:
        return pack((True, method(*arguments)))
    # Expected errors keep their type; anything else may not be picklable, so its trace is sent as text.
    except CfelError as error:
        return pack((False, error))
    except Exception:  # noqa: BLE001 — it is raised again where the call was made
        return pack((False, WorkerError(f"in a worker process:\n{traceback.format_exc()}")))


def pack(value: object) -> bytes:
    """Pickles a value for `pickle.loads`, faster than torch and dataclasses do by themselves."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = cast(Any, _REDUCTIONS)
    pickler.dump(value)
    return buffer.getvalue()


def _by_fields(kind: type[Any]) -> Callable[[Any], Reduction]:
    values = attrgetter(*(field.name for field in fields(kind)))
    return lambda value: (kind, values(value))


def _tensor(value: Tensor) -> Reduction:
    return torch.from_numpy, (value.detach().numpy(),)


_REDUCTIONS = MappingProxyType(
    {Tensor: _tensor}
    | {
        kind: _by_fields(kind)
        for kind in (Order, DeviceState, DeviceReport, Estimates, FlatModel, SparseUpdate)
    }
)
