"""`cfel edge` and `cfel device`: one node of a federation."""

import argparse
import logging
from pathlib import Path

from cfel.cli.options import Commands, add_command
from cfel.errors import CfelError, InputError
from cfel.launch.logs import FORMATS, LEVELS, LogSettings, start_logging
from cfel.launch.node import FAILED, STOPPED, choose_exit_code, read_node, run_node

_LOG = logging.getLogger(__name__)


EXAMPLES = {"edge": "  cfel edge --config edge-0.toml", "device": "  cfel device --config device-7.toml"}


def register(commands: Commands, name: str) -> None:
    """Adds the command of a role."""
    parser = add_command(commands, name, EXAMPLES[name])
    parser.add_argument(
        "--config",
        type=Path,
        required=True,
        metavar="NODE.toml",
        help="configuration of the node; see docs/guides/deploy.md",
    )
    parser.add_argument("--log", type=Path, metavar="FILE", help="log file (default: standard error)")
    add_log_options(parser)
    parser.set_defaults(run=run, role=name, choose_exit_code=choose_exit_code)


def add_log_options(parser: argparse.ArgumentParser) -> None:
    """Adds --log-level and --log-format."""
    parser.add_argument("--log-level", choices=LEVELS, help="least level to log (default info)")
    parser.add_argument("--log-format", choices=FORMATS, help="text, or json for one object per line")


def choose_log_settings(arguments: argparse.Namespace, default: LogSettings) -> LogSettings:
    """The settings of the command line, and those of the configuration file for the rest."""
    return LogSettings(arguments.log_level or default.level, arguments.log_format or default.format)


def run(arguments: argparse.Namespace) -> int:
    """Runs the node until the experiment is finished; a node stopped before that exits with 130."""
    file = read_node(arguments.config)
    identity = file.node.identity
    if identity.role != arguments.role:
        raise InputError(
            f"{arguments.config}: configures {identity}, which `cfel {arguments.role}` cannot run"
        )
    settings = choose_log_settings(arguments, file.log)
    start_logging(arguments.log, settings)
    if settings.format == "json" and arguments.log is None:
        return _run_in_json(arguments.config)
    if not run_node(arguments.config):
        raise KeyboardInterrupt
    return 0


def _run_in_json(config: Path) -> int:
    """Runs the node; the reason it ends is a log line, as collectors of standard error expect only JSON."""
    try:
        if run_node(config):
            return 0
    except CfelError as error:
        _LOG.error("ends: %s", error)
        return choose_exit_code(error)
    except Exception:  # noqa: BLE001 — logged with its trace
        _LOG.exception("ends with an error that was not expected")
        return FAILED
    _LOG.info("stopped")
    return STOPPED
