"""The files of CIFAR-10: binary batches, and Python batches, which are read without trusting them.

The Python batches are pickles, and a pickle can run any code. So they are read by an unpickler that knows
only four names. Each is bound to a class that can hold bytes and shapes and do nothing else. Any other name
raises an error before anything runs. NumPy's unpickling is not used. Finding the files is `cifar10`.
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


def read_binary_batch(path: Path) -> Labelled:
    """Reads a `.bin` file: records of a label and 3,072 pixels; images are samples × 3 × 32 × 32."""
    content = np.frombuffer(path.read_bytes(), dtype=np.uint8)
    if content.size == 0 or content.size % (1 + _PIXELS):
        raise InputError(f"{path}: {content.size} bytes are not a whole number of records of {1 + _PIXELS}")
    records = content.reshape(-1, 1 + _PIXELS)
    return records[:, 1:].reshape(-1, 3, 32, 32).copy(), records[:, 0].astype(np.int64)


def read_python_batch(path: Path) -> Labelled:
    """Reads images and labels of a Python batch, written by any version of Python.

    Raises:
        InputError: the file refers to anything but an array of bytes, or is not a batch.
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
    """Takes the place of a NumPy dtype while a batch is read: holds its name."""

    def __init__(self, name: str | bytes = "", *_: object) -> None:
        self.name = name.decode("ascii", "replace") if isinstance(name, bytes) else str(name)

    def __setstate__(self, state: object) -> None:
        """Ignores byte order and the like: single bytes have none."""


class _Array:
    """Takes the place of a NumPy array while a batch is read: holds shape, type and bytes."""

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


def _encode_latin1(text: object, encoding: object = "latin1") -> bytes:
    """Makes bytes of the text that old pickle protocols store in their place."""
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise InputError("a CIFAR-10 batch holds no text in an encoding other than latin1")
    return codecs.encode(text, "latin1")


class _BatchUnpickler(pickle.Unpickler):
    """Knows only the four names in a CIFAR-10 batch; see the module's docstring."""

    def find_class(self, module: str, name: str) -> object:
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return _Array
        known = {
            ("numpy", "ndarray"): _Array,
            ("numpy", "dtype"): _Type,
            ("_codecs", "encode"): _encode_latin1,
        }
        if (module, name) not in known:
            raise InputError(f"rejected: it refers to {module}.{name}, which no CIFAR-10 batch needs")
        return known[module, name]
