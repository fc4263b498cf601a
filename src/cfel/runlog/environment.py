"""Environment: the software and the machine a run was made with, as `environment.json`.

For information only. It also carries the schema number of the run directory, because it is read first.
Nothing here identifies a person or a host.
"""

import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from cfel import validation
from cfel.errors import InputError, RunDirectoryError
from cfel.runlog.json_text import parse_json
from cfel.wording import show

SCHEMA = 1
"""Layout of a run directory; raised when an older reader would misread a newer directory."""

# The directories of an absolute path, at the beginning of a word or of a value in it.
_DIRECTORIES = re.compile(r"(?<![\w./…~-])(?:~|/)(?:[^\s\"',;=/]*/)*")
_PACKAGES = ("cfel", "numpy", "torch", "pyarrow", "safetensors", "ray")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Versions, commit and machine.

    Attributes:
        schema: layout of the run directory.
        python: version of the interpreter.
        packages: versions of the installed packages that results depend on.
        commit: commit of the source tree cfel runs from; None when it is an installed package.
        modified: whether that tree had uncommitted changes; None when there is no commit.
        cpu: model of the processor.
        cores: logical cores this process may use.
        platform: operating system and architecture.
        command: the command line of the run, as words; only the last part of absolute paths.
        started: when it started, in ISO 8601; may be empty.
    """

    schema: int
    python: str
    packages: dict[str, str]
    commit: str | None
    modified: bool | None
    cpu: str
    cores: int
    platform: str
    command: tuple[str, ...] = ()
    started: str = ""

    def __post_init__(self) -> None:
        """Checks the types: a page is made of these values."""
        texts = {name: getattr(self, name) for name in ("python", "cpu", "platform", "started")}
        texts |= {f"packages[{key!r}]": value for key, value in dict(self.packages).items()}
        texts |= {f"command[{place}]": word for place, word in enumerate(self.command)}
        for name, value in texts.items():
            if not isinstance(value, str):
                raise InputError(f"{name}: {show(value)} is not text")
        if not isinstance(self.commit, str | None) or not isinstance(self.modified, bool | None):
            raise InputError(f"commit = {show(self.commit)}, modified = {show(self.modified)}: not allowed")
        validation.check_whole("cores", self.cores, least=0)

    def to_json(self) -> str:
        """The document of `environment.json`."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Environment":
        """Reads what `to_json` wrote.

        Raises:
            RunDirectoryError: it comes from a newer cfel.
            Exception: of many kinds, if the text is no such document; see `translate_parse_errors`.
        """
        document: dict[str, Any] = parse_json(text)
        schema = validation.check_whole("schema", document["schema"], least=0)
        if schema > SCHEMA:
            raise RunDirectoryError(
                f"this run directory has schema {schema}, this cfel reads up to schema {SCHEMA}: "
                "please use a newer cfel; nothing was changed"
            )
        return cls(**{**document, "command": tuple(document.get("command", ()))})


def describe_environment(command: Sequence[str] = (), started: str = "") -> Environment:
    """Describes the environment of this process.

    Args:
        command: the command line that makes the run.
        started: the current time in ISO 8601, if it should be stored.
    """
    commit, modified = _commit(Path(__file__).resolve().parents[1])
    return Environment(
        schema=SCHEMA,
        python=platform.python_version(),
        packages=_versions(),
        commit=commit,
        modified=modified,
        cpu=_cpu_model(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        command=_strip_directories(command),
        started=started,
    )


def _strip_directories(words: Sequence[str]) -> tuple[str, ...]:
    """The words without the directories of absolute paths, which often name a person."""
    return tuple(_DIRECTORIES.sub("" if place == 0 else "…/", word) for place, word in enumerate(words))


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _cpu_model(source: Path = Path("/proc/cpuinfo")) -> str:
    try:
        lines = source.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or platform.machine())


def _commit(package: Path) -> tuple[str | None, bool | None]:
    """Commit of the tree that holds `package` as src/<package>, and whether the tree was changed since."""
    root = package.parents[1]
    if package.parent.name != "src" or not (root / ".git").exists():
        return None, None  # a package installed below somebody's repository is not that repository
    commit = _git(root, "rev-parse", "HEAD")
    changes = _git(root, "status", "--porcelain", "--untracked-files=no")
    return (commit, bool(changes)) if commit else (None, None)


def _git(root: Path, *words: str) -> str | None:
    program = shutil.which("git")
    if program is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603 — fixed words, no shell
            [program, "-C", str(root), *words], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
