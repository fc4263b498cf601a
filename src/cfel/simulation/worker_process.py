"""Worker processes: forked from this one, they do what they are asked, one call after the other.

Two threads that start operations of microseconds spend their time handing Python's interpreter lock to and
fro, and small models consist of such operations. A child inherits its object (model, data, plug-ins) as it is
in memory, so that nothing needs to be sent but orders and results: bytes through a pipe, never through a file
or a network. It ends with this process, however that ends, as the pipe is then closed.

Which work goes to a child is `executors`' business.
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
from cfel.learning.compression.compressors import SparseUpdate
from cfel.learning.device_messages import DeviceOrder, DeviceReport, DeviceState
from cfel.learning.local.estimates import Estimates
from cfel.learning.models.flat import FlatModel
from cfel.learning.worker_threads import prepare_thread

# The most that Linux gives to everybody.
PIPE_BYTES = 1 << 20

Reduction = tuple[Callable[..., Any], tuple[Any, ...]]


def can_fork() -> bool:
    """Whether this system lets a process with torch in it fork (macOS offers it, its libraries break)."""
    return sys.platform.startswith("linux")


class Child:
    """A process with a copy of an object, whose methods it calls for us. Not to be shared between threads.

    Args:
        served: the object; whatever locks it needs must be free.
        siblings: children forked before; the new one must not hold their pipes open.
    """

    def __init__(self, served: object, siblings: "Sequence[Child]" = ()) -> None:
        context = multiprocessing.get_context("fork")
        (orders, self._orders), (self._results, results) = _wide_pipe(), _wide_pipe()
        elders = [end for sibling in siblings for end in (sibling._orders, sibling._results)]
        ends = [self._orders, self._results, *elders]
        self._process = context.Process(target=_serve, args=(served, orders, results, ends), daemon=True)
        with _no_collecting():
            self._process.start()
        orders.close()
        results.close()

    def call(self, method: str, *arguments: object) -> Any:  # noqa: ANN401 — whatever the method returns
        """What the method returns, or raises.

        Raises:
            WorkerError: the process is gone, or failed in a way that has no place in cfel.
        """
        try:
            self._orders.send_bytes(packed((method, arguments)))
            done, result = pickle.loads(self._results.recv_bytes())  # noqa: S301 — from our own child
        except (EOFError, OSError) as error:
            self._process.join()
            raise WorkerError(
                f"a worker process has ended (exit code {self._process.exitcode}); was there memory enough?"
            ) from error
        if not done:
            raise result
        return result

    def close(self) -> None:
        """Lets the process end and waits for it."""
        self._orders.close()
        self._process.join()
        self._results.close()


@contextmanager
def _no_collecting() -> Iterator[None]:
    """No garbage is collected meanwhile, in a child that is forked meanwhile neither; see `_serve`."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _wide_pipe() -> tuple[Connection, Connection]:
    """A pipe's two ends, reading first, that takes most messages whole: less waking one another up."""
    reading, writing = multiprocessing.Pipe(duplex=False)
    # Who has many pipes already may be refused; a narrow one does as well, a little later.
    with suppress(PermissionError):
        fcntl.fcntl(writing.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return reading, writing


def _serve(served: object, orders: Connection, results: Connection, others: Sequence[Connection]) -> None:
    """A child's life."""
    # Garbage of the parent is the parent's: what ends a gRPC channel waits for a thread that is not here.
    gc.freeze()
    gc.enable()
    # Ctrl-C goes to all processes of the terminal; when to stop is decided by the first of them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for other in others:
        other.close()
    prepare_thread()
    while True:
        try:
            method, arguments = pickle.loads(orders.recv_bytes())  # noqa: S301 — from the process we are part of
        except EOFError:
            return
        answer = _answer(getattr(served, method), arguments)
        try:
            results.send_bytes(answer)
        except BrokenPipeError:
            return


def _answer(method: Callable[..., object], arguments: tuple[object, ...]) -> bytes:
    try:
        return packed((True, method(*arguments)))
    except CfelError as error:
        return packed((False, error))
    except Exception:  # noqa: BLE001 — it is raised again where the call was made
        return packed((False, WorkerError(f"in a worker process:\n{traceback.format_exc()}")))


def packed(value: object) -> bytes:
    """The value as `pickle.loads` reads it; faster than torch and dataclasses are by themselves."""
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
        for kind in (DeviceOrder, DeviceState, DeviceReport, Estimates, FlatModel, SparseUpdate)
    }
)
