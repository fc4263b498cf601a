"""`cfel export`: writes the trained model of a run to a file for use elsewhere."""

import argparse
from pathlib import Path

from rich.console import Console

from cfel.api.models import export_model
from cfel.cli import options, output

EXAMPLE = """  cfel export runs/first --to model.safetensors
  cfel export runs/first --to model.onnx --edge 3"""


def register(commands: options.Commands, name: str) -> None:
    parser = options.add_command(commands, name, EXAMPLE)
    parser.add_argument("directory", type=Path, metavar="DIR", help="the run directory")
    parser.add_argument(
        "--to",
        type=Path,
        required=True,
        metavar="FILE",
        help="model.safetensors (names and shapes of the torch module) or model.onnx (normalised inputs in, "
        "scores out; needs 'cfel[onnx]')",
    )
    parser.add_argument(
        "--edge",
        type=options.parse_count,
        metavar="N",
        help="model of edge server N (default: the consensus of all)",
    )
    parser.add_argument(
        "--device",
        type=options.parse_count,
        metavar="N",
        help="model that device N keeps to itself, where devices do (model.personal, ditto)",
    )
    options.add_trust_option(parser)
    options.add_json_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Writes the file and prints which model it holds."""
    code = options.select_code_policy(arguments, arguments.directory)
    found = export_model(arguments.directory, arguments.to, arguments.edge, code, arguments.device)
    if arguments.json:
        whose = {"edge": arguments.edge, "device": arguments.device}
        output.print_json({"file": str(arguments.to), "round": found.round, **whose})
        return 0
    words = f"{arguments.to}: {found.whose} after global round {found.round}"
    Console(highlight=False).print(words, soft_wrap=True, markup=False)
    return 0
