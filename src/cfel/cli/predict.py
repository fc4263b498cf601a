"""`cfel predict`: runs a trained model on a file of samples."""

import argparse
from io import BytesIO
from pathlib import Path

import numpy as np
from rich.console import Console

from cfel.api.models import Prediction, predict
from cfel.cli import options, output
from cfel.durable import replace_file

EXAMPLE = """  cfel predict model.safetensors samples.npy
  cfel predict runs/first samples.npz --to scores.npy"""


def register(commands: options.Commands, name: str) -> None:
    parser = options.add_command(commands, name, EXAMPLE)
    parser.add_argument(
        "model", type=Path, metavar="FILE|DIR", help="a file of `cfel export`, or a run directory"
    )
    parser.add_argument(
        "samples", type=Path, metavar="SAMPLES", help=".npy or .npz, raw: as the data set has them"
    )
    parser.add_argument("--to", type=Path, metavar="FILE", help="also write the model's outputs, as .npy")
    parser.add_argument(
        "--device",
        type=options.parse_count,
        metavar="N",
        help="model that device N keeps, of a run directory",
    )
    options.add_trust_option(parser)
    options.add_json_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    folder = arguments.model if arguments.model.is_dir() else arguments.model.parent
    code = options.select_code_policy(arguments, folder)
    found = predict(arguments.model, arguments.samples, code, arguments.device)
    if arguments.to is not None:
        content = BytesIO()
        np.save(content, found.outputs)
        replace_file(arguments.to, content.getvalue())
    if arguments.json:
        output.print_json({"samples": _list_samples(found)})
        return 0
    console = Console(highlight=False)
    for number, each in enumerate(_list_samples(found)):
        console.print(f"{number}: {_describe(each)}", markup=False, soft_wrap=True)
    return 0


def _list_samples(found: Prediction) -> list[dict[str, object]]:
    outputs = found.outputs.tolist()
    if found.labels is None or found.shares is None:
        return [{"outputs": each} for each in outputs]
    columns = zip(found.labels.tolist(), found.shares.tolist(), strict=True)
    return [{"label": label, "probability": share} for label, share in columns]


def _describe(sample: dict[str, object]) -> str:
    if "label" in sample:
        return f"{sample['label']} ({100 * float(str(sample['probability'])):.1f} %)"
    return str(sample["outputs"])
