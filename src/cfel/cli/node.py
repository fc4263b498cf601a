"""`cfel edge` and `cfel device`: one node of a federation; `cfel rollback`: which model it uses."""

import argparse
import logging
from functools import partial
from pathlib import Path

from cfel.cli import options, output
from cfel.deployment.host import RealDisk
from cfel.deployment.publishing import PublishedModels
from cfel.errors import CfelError, InputError
from cfel.launch.logs import FORMATS, LEVELS, LogSettings, start_logging
from cfel.launch.node import FAILED, STOPPED, choose_exit_code, read_node, run_node

_LOG = logging.getLogger(__name__)


EXAMPLES = {
    "edge": "  cfel edge --config edge-0.toml",
    "device": "  cfel device --config device-7.toml",
    "rollback": """  cfel rollback /var/lib/cfel/device-3               # to the model before the one in use
  cfel rollback runs/tiny-up --to 20                 # all nodes of `cfel up`, to the model after round 20
  cfel rollback runs/tiny-up --newest                # use new models again""",
}


def _add_node_options(parser: argparse.ArgumentParser, role: str) -> None:
    parser.add_argument(
        "--config",
        type=Path,
        required=True,
        metavar="NODE.toml",
        help="configuration of the node; see docs/guides/deploy.md",
    )
    parser.add_argument("--log", type=Path, metavar="FILE", help="log file (default: standard error)")
    add_log_options(parser)
    parser.set_defaults(run=run, role=role, choose_exit_code=choose_exit_code)


add_edge_options = partial(_add_node_options, role="edge")
add_device_options = partial(_add_node_options, role="device")


def add_log_options(parser: argparse.ArgumentParser) -> None:
    """Adds --log-level and --log-format, also for `cfel up`."""
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


def add_rollback_options(parser: argparse.ArgumentParser) -> None:
    options.add_directory_argument(parser, "the directory of a node, or of `cfel up` for all of them")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--to", type=options.parse_count, metavar="ROUND", help="use the model after this round"
    )
    which.add_argument("--newest", action="store_true", help="use the newest model, now and from now on")
    which.add_argument("--list", action="store_true", help="only show the models that are kept")
    options.add_json_option(parser)
    parser.set_defaults(run=roll_back)


def roll_back(arguments: argparse.Namespace) -> None:
    """Changes the model in use and prints which one it is, per node."""
    nodes = {place: PublishedModels(RealDisk(), place) for place in _find_nodes(arguments.directory)}
    if not arguments.list:
        newest = arguments.newest
        # Chosen for all before any is changed: a fleet with two models is what an operator wants least.
        chosen = {place: None if newest else each.find(arguments.to) for place, each in nodes.items()}
        for place, each in nodes.items():
            each.use(chosen[place])
    if arguments.json:
        output.print_json({str(place): _describe(each) for place, each in nodes.items()})
    else:
        for place, each in nodes.items():
            output.print_line(f"{place}: {_describe_in_words(each)}")


def _find_nodes(directory: Path) -> list[Path]:
    places = [directory, *sorted((directory / "nodes").glob("*"))]
    found = [place for place in places if (place / "published.json").is_file()]
    if not found:
        raise InputError(f"{directory}: no node has published a model there")
    return found


def _describe(models: PublishedModels) -> dict[str, object]:
    used = models.find_used()
    return {
        "used": None if used is None else used.round,
        "pinned": models.pinned,
        "kept": [{"round": each.round, "sha256": each.sha256} for each in models.list()],
    }


def _describe_in_words(models: PublishedModels) -> str:
    used, kept = models.find_used(), ", ".join(str(each.round) for each in models.list())
    words = "a model that was not published" if used is None else f"the model of round {used.round}"
    pinned = "" if models.pinned is None else ", until `cfel rollback --newest`"
    return f"uses {words}{pinned}; kept are those of rounds {kept}"
