"""The virtual environment of the peers: made once, in a folder of its own, with pinned versions."""

import subprocess
import sys
import venv
from importlib.metadata import version
from pathlib import Path

from cfel.errors import InputError

PINS = {"pfl": "pfl==0.6.0", "flower": "flwr[simulation]==1.41.0"}
DEFAULT_FOLDER = Path.home() / ".cache" / "cfel" / "peers"


def prepare_environment(folder: Path, peers: tuple[str, ...]) -> Path:
    """Installs the peers, with the torch of this environment, if needed; returns their interpreter.

    Raises:
        InputError: pip cannot install one of them; the message ends with pip's own last line.
    """
    python = folder / "bin" / "python"
    wanted = [f"torch=={version('torch').partition('+')[0]}", *(PINS[peer] for peer in peers)]
    done = folder / "installed.txt"
    if done.is_file() and set(wanted) <= set(done.read_text(encoding="utf-8").splitlines()):
        return python
    venv.create(folder, with_pip=True, clear=True)
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted]
    installed = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 — fixed names
    if installed.returncode:
        reason = (installed.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise InputError(f"{', '.join(wanted)}: pip cannot install this into {folder}: {reason}")
    done.write_text("\n".join(wanted) + "\n", encoding="utf-8")
    return python


def own_interpreter() -> Path:
    """The interpreter of cfel's own environment."""
    return Path(sys.executable)
