"""Optional dependencies: which extra of cfel brings which package, and the error that names it.

`pip install cfel` brings what planning needs. Everything else is in extras, and whatever is missing is
reported here, with the command that installs it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from cfel.errors import InputError

EXTRAS: Mapping[str, str] = MappingProxyType(
    {
        "torch": "learn",
        "safetensors": "learn",
        "pyarrow": "learn",
        "sklearn": "learn",
        "PIL": "learn",
        "grpc": "deploy",
        "msgspec": "deploy",
        "cryptography": "deploy",
        "starlette": "deploy",
        "uvicorn": "deploy",
        "matplotlib": "report",
        "ray": "ray",
        "datasets": "hf",
        "flwr": "flower",
        "onnx": "onnx",
        "onnxscript": "onnx",
        "optuna": "tune",
        "tensorboard": "tensorboard",
        "mlflow": "mlflow",
        "sqlalchemy": "mlflow",
        "alembic": "mlflow",
        "wandb": "wandb",
        "trackio": "trackio",
    }
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
