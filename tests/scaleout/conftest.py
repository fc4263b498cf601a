"""Ray clusters for tests: real nodes, with tokens, in a network that nothing else reaches."""

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pytest

from cfel.experiment import Experiment
from cfel.simulation.loop import simulate
from cfel.simulation.state import initial_state
from tests.simulation.drive import timeless

if TYPE_CHECKING:
    from .fake_ray import FakeRay

ROOT = Path(__file__).parents[2]
NAMESPACES = ["--net", "--pid", "--fork", "--kill-child", "--mount-proc"]


def why_no_namespaces() -> str | None:
    """Why namespaces cannot be created here, or None."""
    for program in ("unshare", "nsenter"):
        if shutil.which(program) is None:
            return f"{program} (util-linux) is not installed"
    tried = subprocess.run(
        [shutil.which("unshare") or "unshare", *NAMESPACES, "true"], capture_output=True, text=True
    )
    return None if tried.returncode == 0 else f"namespaces are not permitted: {tried.stderr.strip()}"


class Nodes:
    """A cluster in a namespace, and a way to run commands beside it."""

    def __init__(self, holder: "subprocess.Popen[str]", environment: dict[str, str], log: Path) -> None:
        self._holder, self._environment, self._log = holder, environment, log
        self.address = str(self._answer()["address"])
        inside = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()[0]
        self._enter = ["nsenter", "--target", inside, "--net", "--pid", "--mount"]

    def send(self, **order: Any) -> dict[str, Any]:
        """Sends a command to the cluster; see `nodes`."""
        _pipe(self._holder.stdin).write(json.dumps(order) + "\n")
        _pipe(self._holder.stdin).flush()
        return self._answer()

    def start(self, *command: str) -> "subprocess.Popen[str]":
        """Starts a Python command in the namespace."""
        words = [*self._enter, "--", sys.executable, *command]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(words, env=self._environment, cwd=Path.cwd(), **pipes)  # type: ignore[call-overload,no-any-return]

    def _answer(self) -> dict[str, Any]:
        line = _pipe(self._holder.stdout).readline()
        if not line:
            raise RuntimeError(f"the cluster ended: {self._log.read_text()[-2000:]}")
        document: dict[str, Any] = json.loads(line)
        return document


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


@contextmanager
def cluster(nodes: int, system: dict[str, Any] | None = None, **node: Any) -> Iterator[Nodes]:
    """A cluster of some nodes with one core each; all its processes end with it."""
    pytest.importorskip("ray", reason="Ray is not installed")
    reason = why_no_namespaces()
    if reason is not None:
        pytest.skip(reason)
    tokens = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    folder = tempfile.mkdtemp(prefix="cfel-ray-")
    # Ray writes the address of its head into this folder, which it does not create.
    Path(folder, "ray").mkdir()
    # Drivers and workers import parts from `tests`, and are not started in this directory.
    modules = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    # Workers have 120 s to start, which they may not do on a busy machine at Ray's niceness of 15.
    own = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TMPDIR": folder,
        "PYTHONPATH": modules,
        "RAY_worker_niceness": "0",
    }
    environment = {**os.environ, **tokens, **own}
    settings = {"nodes": nodes, "system": system or {}, "node": node, "folder": folder}
    script = str(Path(__file__).with_name("nodes.py"))
    command = ["unshare", *NAMESPACES, sys.executable, script, json.dumps(settings)]
    with (
        Path(folder, "holder.log").open("w") as log,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        ) as holder,
    ):
        try:
            yield Nodes(holder, environment, Path(folder, "holder.log"))
        finally:
            holder.kill()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[Nodes]:
    with cluster(2) as nodes:
        yield nodes


@pytest.fixture
def fake_ray(monkeypatch: pytest.MonkeyPatch) -> "FakeRay":
    """A fake of Ray in this process."""
    from .fake_ray import install

    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    return install(monkeypatch)


def on_ray(experiment: Experiment) -> list[dict[str, Any]]:
    """The log of an experiment on the two workers of `fake_ray`."""
    from cfel.scaleout import ray_executor

    world = experiment.build_world()
    parameters = experiment.resolve(world).simulation
    with ray_executor(world, parameters) as executor:
        assert len(executor.describe_workers()) == 2
        rounds = simulate(world, executor, initial_state(world), lambda: 0.0)
        return timeless([each.record for each in rounds])
