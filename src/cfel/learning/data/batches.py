"""CIFAR-10's own file formats: the binary batches and, read without trusting them, the Python ones.

The Python batches are pickles. A pickle can run any code, so these are read by an unpickler that knows four
names only, each bound to a stand-in that can hold bytes and shapes and do nothing else; any other name is
refused before anything happens. NumPy's own unpickling is not involved.
"""

import codecs
import pickle
from pathlib import Path
from typing import TypeAlias

import numpy as np

from cfel.arrays import ByteArray, IntArray
from cfel.errors import InputError

Labelled: TypeAlias = tuple[ByteArray, IntArray]

_PIXELS = 3 * 32 * 32


def binary_batch(path: Path) -> Labelled:
    """Images (samples × 3 × 32 × 32) and labels of a `.bin` file: records of a label and 3,072 pixels."""
    content = np.frombuffer(path.read_bytes(), dtype=np.uint8)
    if content.size == 0 or content.size % (1 + _PIXELS):
        raise InputError(f"{path}: {content.size} bytes are not a whole number of records of {1 + _PIXELS}")
    records = content.reshape(-1, 1 + _PIXELS)
    return records[:, 1:].reshape(-1, 3, 32, 32).copy(), records[:, 0].astype(np.int64)


def python_batch(path: Path) -> Labelled:
    """Images and labels of one batch of the Python version, whatever Python wrote it.

    Raises:
        InputError: the file names anything but an array of bytes, or does not hold what a batch holds.
    """
    with path.open("rb") as file:
        try:
            content = _BatchUnpickler(file, encoding="bytes").load()
        except InputError as error:
            raise InputError(f"{path}: {error}") from error
        except (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, KeyError) as error:
            raise InputError(f"{path}: not a CIFAR-10 batch: {error}") from error
        except (IndexError, MemoryError, OverflowError) as error:
            raise InputError(f"{path}: not a CIFAR-10 batch: {type(error).__name__}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: holds a {type(content).__name__}, a CIFAR-10 batch is a dictionary")
    fields = {k.decode() if isinstance(k, bytes) else k: v for k, v in content.items()}
    data, labels = fields.get("data"), fields.get("labels")
    if not isinstance(data, _Array) or not isinstance(labels, list):
        raise InputError(f"{path}: needs an array 'data' and a list 'labels', has {sorted(map(str, fields))}")
    if not all(isinstance(label, int) for label in labels):
        raise InputError(f"{path}: 'labels' must be integers")
    images = data.pixels(str(path))
    if len(labels) != len(images):
        raise InputError(f"{path}: {len(images)} images and {len(labels)} labels")
    return images, np.asarray(labels, dtype=np.int64)


class _Type:
    """Stands in for a NumPy type while a batch is read: keeps the name it was made with."""

    def __init__(self, name: str | bytes = "", *_: object) -> None:
        self.name = name.decode("ascii", "replace") if isinstance(name, bytes) else str(name)

    def __setstate__(self, state: object) -> None:
        """Byte order and the like mean nothing for single bytes."""


class _Array:
    """Stands in for a NumPy array while a batch is read: keeps shape, type and bytes."""

    def __init__(self, *_: object) -> None:
        self.state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state

    def pixels(self, where: str) -> ByteArray:
        match self.state:
            case (int(), (int() as rows, 3072), _Type() as kind, False | 0, bytes() as content) if (
                kind.name in ("u1", "uint8", "|u1") and len(content) == rows * _PIXELS
            ):
                return np.frombuffer(content, dtype=np.uint8).reshape(rows, 3, 32, 32).copy()
        raise InputError(f"{where}: 'data' must be bytes, samples × {_PIXELS} in C order")


def _encoded(text: object, encoding: object = "latin1") -> bytes:
    """How old pickle protocols spell bytes."""
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise InputError("a string in an encoding other than latin1 has no place in a batch")
    return codecs.encode(text, "latin1")


class _BatchUnpickler(pickle.Unpickler):
    """Knows the four names a CIFAR-10 batch mentions; see the module's docstring."""

    def find_class(self, module: str, name: str) -> object:
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return _Array
        known = {("numpy", "ndarray"): _Array, ("numpy", "dtype"): _Type, ("_codecs", "encode"): _encoded}
        if (module, name) not in known:
            raise InputError(f"refused: it asks for {module}.{name}, which no CIFAR-10 batch needs")
        return known[module, name]
