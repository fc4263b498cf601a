"""Optional dependencies: which extra of cfel brings which package, and the error that names it.

`pip install cfel` brings what planning needs. Everything else is in extras, and whatever is missing is
reported here, with the command that installs it. Packages that import their names on first use do so with
`import_on_use`.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from types import MappingProxyType

from cfel.errors import InputError

_PACKAGES = {
    "learn": ("torch", "safetensors", "pyarrow", "sklearn", "PIL", "msgspec"),
    "deploy": ("grpc", "cryptography", "starlette", "uvicorn"),
    "report": ("matplotlib",),
    "ray": ("ray",),
    "hf": ("datasets",),
    "flower": ("flwr",),
    "onnx": ("onnx", "onnxscript"),
    "tune": ("optuna",),
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
    "wandb": ("wandb",),
    "trackio": ("trackio",),
}
EXTRAS: Mapping[str, str] = MappingProxyType(
    {package: extra for extra, packages in _PACKAGES.items() for package in packages}
)
"""The extra that brings each package, by the name it is imported as."""


class MissingExtraError(InputError, ImportError):
    """A package is not installed; the message names the extra that brings it, and the command."""


def install_command(package: str) -> str:
    """The command that installs a package, named as it is imported."""
    return f"pip install 'cfel[{EXTRAS[package]}]'"


@contextmanager
def explain_missing_extra() -> Iterator[None]:
    """Turns the failed import of an optional package into a `MissingExtraError`."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        raise MissingExtraError(
            f"this needs {package}, which is not installed: {install_command(package)}"
        ) from error


def import_on_use(
    package: str, names: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Makes the `__getattr__` and the `__dir__` of a package whose names are imported on first use.

    `names` lists them by the module below the package that defines them.
    """
    modules = {name: module for module, defined in names.items() for name in defined}

    def find(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with explain_missing_extra():
            return getattr(import_module(f"{package}.{modules[name]}"), name)

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return find, list_names
