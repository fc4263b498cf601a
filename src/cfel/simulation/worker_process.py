"""Worker processes, forked from this one: each carries out one call after the other.

Small models consist of operations that take microseconds, and two threads that start such operations spend
their time passing Python's interpreter lock back and forth. A child inherits its object (model, data,
plug-ins) as it is in memory, so only orders and results are sent: bytes through a pipe, never through a file
or a network. Vectors in `SharedVectors` are not sent at all, only their places. A child ends with this
process, however that ends, because the pipe is then closed; the shared memory has no name and ends with them.

What work is sent to a child is decided in `executors`.
"""

import fcntl
import gc
import io
import mmap
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
# mmap(2): take memory when it is written to, and not before; Python 3.11 has no name for it.
_MAP_NORESERVE = 0x4000

Reduction = tuple[Callable[..., Any], tuple[Any, ...]]


def can_fork() -> bool:
    """Whether this system lets a process with torch in it fork (macOS offers it, its libraries break)."""
    return sys.platform.startswith("linux")


class SharedVectors:
    """Float32 vectors that this process and those it forks later see alike.

    They take address space only, until they are written to. Nobody may read one while another writes it.

    Args:
        count: number of vectors.
        length: numbers in each, at most.
    """

    def __init__(self, count: int, length: int) -> None:
        # Rows start at a multiple of 64 bytes, as fast kernels prefer.
        self._stride = -(-length // 16) * 16
        size = 4 * max(1, count * self._stride)
        try:
            memory = mmap.mmap(-1, size, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
        except OSError as error:
            raise WorkerError(
                f"cannot reserve {size / 2**30:.1f} GiB of address space to share with worker processes "
                f"({error}); use --engine threads, which gives the same results"
            ) from error
        self._all = torch.frombuffer(memory, dtype=torch.float32)

    def fits(self, parts: Sequence[Tensor]) -> bool:
        """Whether one place takes all these."""
        return sum(each.numel() for each in parts) <= self._stride

    def put(self, number: int, parts: Sequence[Tensor]) -> list[Tensor]:
        """Copies vectors, one behind the other, into a place; returns them as they are there."""
        start, found = number * self._stride, []
        for values in parts:
            place = self.view(start, values.numel())
            # Training changes vectors where they are, so most need no copy.
            if place.data_ptr() != values.data_ptr():
                place.copy_(values)
            found.append(place)
            start += values.numel()
        return found

    def find(self, values: Tensor) -> tuple[int, int] | None:
        """Where a vector begins, and its length; None if it is somewhere else."""
        start, rest = divmod(values.data_ptr() - self._all.data_ptr(), 4)
        inside = 0 <= start < self._all.numel() and not rest and values.dtype == torch.float32
        return (start, values.numel()) if inside and values.dim() == 1 and values.is_contiguous() else None

    def view(self, start: int, length: int) -> Tensor:
        """The numbers from a place on."""
        return self._all[start : start + length]


class WorkerProcess:
    """A process with a copy of an object, on which it calls methods for us. Not thread-safe.

    Args:
        served: the object; the locks it needs must be free.
        siblings: processes forked before; the new one must not keep their pipes open.
        shared: vectors of which only places are sent.
    """

    def __init__(
        self,
        served: object,
        siblings: "Sequence[WorkerProcess]" = (),
        shared: SharedVectors | None = None,
    ) -> None:
        context = multiprocessing.get_context("fork")
        (orders, self._orders), (self._results, results) = _open_wide_pipe(), _open_wide_pipe()
        # A child that kept a sibling's pipe open would keep the sibling alive after the parent has ended.
        older = [end for sibling in siblings for end in (sibling._orders, sibling._results)]
        ends = [self._orders, self._results, *older]
        self._messages = Messages(shared or SharedVectors(0, 0))
        self._process = context.Process(
            target=_serve, args=(served, (orders, results), ends, self._messages), daemon=True
        )
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
            self._orders.send_bytes(self._messages.pack((method, arguments)))
            done, result = self._messages.unpack(self._results.recv_bytes())
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


def _serve(
    served: object, ends: tuple[Connection, Connection], others: Sequence[Connection], messages: "Messages"
) -> None:
    """Carries out calls until the parent closes the pipe; runs in the child."""
    # Leave the parent's garbage alone: closing its gRPC channel would wait for a thread that is not here.
    gc.freeze()
    gc.enable()
    # Ctrl-C reaches all processes of the terminal; the parent decides when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for other in others:
        other.close()
    prepare_thread()
    orders, results = ends
    while True:
        try:
            method, arguments = messages.unpack(orders.recv_bytes())
        except EOFError:
            return
        answer = messages.pack(_call(getattr(served, method), arguments))
        try:
            results.send_bytes(answer)
        except BrokenPipeError:
            return


def _call(method: Callable[..., object], arguments: tuple[object, ...]) -> tuple[bool, object]:
    try:
        return True, method(*arguments)
    # Expected errors keep their type; anything else may not be picklable, so its trace is sent as text.
    except CfelError as error:
        return False, error
    except Exception:  # noqa: BLE001 — it is raised again where the call was made
        return False, WorkerError(f"in a worker process:\n{traceback.format_exc()}")


class Messages:
    """Pickles values for a process that was forked from this one, and restores what it pickled.

    It is faster than torch and dataclasses are by themselves. What is in `shared` stays where it is.
    """

    def __init__(self, shared: SharedVectors) -> None:
        self._shared = shared

    def pack(self, value: object) -> bytes:
        buffer = io.BytesIO()
        pickler = _Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL)
        pickler.dispatch_table = cast(Any, _REDUCTIONS)
        pickler.shared = self._shared
        pickler.dump(value)
        return buffer.getvalue()

    def unpack(self, message: bytes) -> Any:  # noqa: ANN401 — whatever was packed
        """The value; only of bytes that one of our own processes has packed."""
        unpickler = _Unpickler(io.BytesIO(message))
        unpickler.shared = self._shared
        return unpickler.load()


class _Pickler(pickle.Pickler):
    """Puts a place into the message instead of a vector that is in shared memory."""

    shared: SharedVectors

    def persistent_id(self, value: object) -> tuple[int, int] | None:
        return self.shared.find(value) if type(value) is Tensor else None


class _Unpickler(pickle.Unpickler):
    """Finds the vectors of which the message has the places."""

    shared: SharedVectors

    def persistent_load(self, place: tuple[int, int]) -> Tensor:
        return self.shared.view(*place)


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
