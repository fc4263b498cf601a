"""Runs one node of a federation in this process, until the experiment is over or the process is stopped.

Adds to `deployment` what belongs to a process: its directory, its dashboard and signals.
"""

import asyncio
import logging
import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from cfel.dashboard import dashboard_app, serve
from cfel.deployment.edge.node import ServeStatus
from cfel.deployment.node import run_device, run_edge
from cfel.deployment.security.experiment_check import ExperimentCheck
from cfel.deployment.security.node_credentials import read_host_names
from cfel.deployment.transport.addresses import split_address
from cfel.durable import translate_os_errors
from cfel.errors import InputError, find_expected_error
from cfel.experiment import Experiment, digest_shared_parts, experiment_toml
from cfel.experiment.files import NODE_KEYS
from cfel.launch.device_data import load_samples
from cfel.launch.node_file import NodeFile, read_node
from cfel.rounds.buffering import reject_buffering
from cfel.rounds.run_directory import describe_run, reject_other_experiment
from cfel.status import Status
from cfel.world import World

TOKEN_VARIABLE = "CFEL_DASHBOARD_TOKEN"  # noqa: S105 — the variable's name
_REFRESH_SECONDS = 0.5

_LOG = logging.getLogger(__name__)


def run_node(path: Path) -> bool:
    """Runs the node of a configuration file until the experiment is over.

    Args:
        path: the configuration file.

    Returns:
        Whether the experiment is over; False if the process was asked to stop.
    """
    file = read_node(path)
    experiment = file.load_experiment()
    reject_buffering(experiment.aggregation, "a deployment")
    world = experiment.build_world()
    node, experiment_check = file.node, ExperimentCheck(digest_shared_parts(experiment))
    if node.identity.role == "operator":
        raise InputError(f"{path}: an operator runs no node")
    # Before any connection is made: a directory of another experiment must not join this one.
    prepare_directory(node.directory, experiment, world)
    if node.identity.role == "edge":
        simulation = experiment.resolve(world).simulation
        serve_status = None if file.dashboard is None else _make_dashboard(experiment, file)
        return asyncio.run(
            run_until_stopped(
                run_edge(world, simulation, experiment.deployment, node, experiment_check, serve_status)
            )
        )
    data = None if file.data is None else load_samples(file.data, file.data_path, world)
    return asyncio.run(
        run_until_stopped(run_device(world, experiment.deployment, node, experiment_check, data))
    )


def prepare_directory(directory: Path, experiment: Experiment, world: World) -> None:
    """Writes into a node's directory what is run there; makes an edge server's directory a run directory.

    Raises:
        RunDirectoryError: another experiment was run there.
    """
    text = experiment_toml(experiment.resolve(world))
    if (directory / "experiment.toml").exists():
        reject_other_experiment(directory, text, [".".join(key) for key in NODE_KEYS])
        return
    with translate_os_errors("create", directory):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    describe_run(directory, world.setting, text)


def _make_dashboard(experiment: Experiment, file: NodeFile) -> ServeStatus:
    """Returns the coroutine function that serves the dashboard of an edge server."""
    host, port = split_address("dashboard", file.dashboard)
    certificate = file.node.certificates / f"{file.node.identity}.pem"

    async def serve_dashboard(take_snapshot: Callable[[], Status]) -> None:
        def add_names() -> Status:
            target = experiment.rounds.target
            return replace(
                take_snapshot(), name=experiment.name, scheme=experiment.scheme.name, target=target
            )

        token = os.environ.get(TOKEN_VARIABLE) or None
        names = read_host_names(certificate) if file.dashboard_tls else ()
        app = dashboard_app(add_names, _REFRESH_SECONDS, token, names)
        tls = {"certificate": certificate, "key": certificate.with_suffix(".key")}
        async with serve(app, host, port, **(tls if file.dashboard_tls else {})) as address:
            _LOG.info("dashboard: %s", address)
            await asyncio.Event().wait()

    return serve_dashboard


async def run_until_stopped(work: Any) -> bool:  # noqa: ANN401 — a coroutine
    """Runs until it is done, a signal to stop arrives, or the parent process has ended.

    Returns:
        Whether it is done; False if it was stopped.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    for number in (signal.SIGTERM, signal.SIGINT):
        # `cfel up` handles Ctrl-C for all its nodes; a node that died by itself would be restarted.
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, task.cancel)
    parent = multiprocessing.parent_process()
    # The sentinel becomes readable when the parent ends; an orphan would run on unnoticed.
    if parent is not None:
        loop.add_reader(parent.sentinel, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        return False
    except BaseExceptionGroup as group:
        # An edge server is several tasks; the user wants to know what went wrong, not in which of them.
        raise find_expected_error(group) or group from None
    finally:
        if parent is not None:
            loop.remove_reader(parent.sentinel)
    return True
