"""`cfel calibrate`: measures this machine and writes it as a device class."""

import argparse
from pathlib import Path

from rich.console import Console

from cfel.calibration import BandwidthServer, Calibration, CalibrationOptions, calibrate
from cfel.cli import options
from cfel.cli.devices import print_figure, write_class
from cfel.cli.options import add_json_option, add_set_option, parse_positive
from cfel.cli.output import print_json
from cfel.deployment.protocol.addresses import join_address, split_address
from cfel.errors import InputError, unknown_name
from cfel.system.device_classes import DEVICE_CLASSES

EXAMPLES = {
    "calibrate": """  cfel calibrate --listen 0.0.0.0:7411              (on another machine)
  cfel calibrate experiment.toml --to 10.0.0.1:7411 --out my-board.toml
  cfel calibrate experiment.toml --watts 6.2 --like raspberry-pi-4"""
}

GIVEN = {
    "watts": ("compute_watts", "W", "while training, from a power meter, instead of counters"),
    "radio-watts": ("radio_watts", "W", "while sending, from a power meter"),
    "uplink": ("uplink_bits_per_second", "N", "bits per second of an upload, instead of --to"),
}


def add_calibrate_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "experiment", nargs="?", type=Path, metavar="EXPERIMENT.toml", help="whose model to train"
    )
    parser.add_argument("--name", metavar="NAME", help="name of the class (default: the host's)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the class to this TOML file")
    parser.add_argument("--to", metavar="HOST:PORT", help="measure the uplink to a host that listens")
    parser.add_argument("--listen", metavar="HOST:PORT", help="be that host, until Ctrl-C; trains nothing")
    parser.add_argument(
        "--seconds", type=parse_positive, default=10.0, metavar="S", help="time to train (default 10)"
    )
    parser.add_argument("--like", metavar="CLASS", help="take what cannot be measured from this class")
    for option, (_, letter, text) in GIVEN.items():
        parser.add_argument(f"--{option}", type=parse_positive, metavar=letter, help=text)
    parser.add_argument("--power-file", type=Path, metavar="FILE", help="a power monitor's microwatts")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="torch device")
    add_set_option(parser)
    add_json_option(parser)
    parser.set_defaults(run=run, engine=None)


def run(arguments: argparse.Namespace) -> None:
    """Measures, prints what was found and what was not, and writes the class."""
    console = Console(highlight=False)
    if arguments.listen is not None:
        _listen(console, arguments.listen)
        return
    if arguments.experiment is None:
        raise InputError("EXPERIMENT.toml: is needed, unless --listen is given")
    found = calibrate(options.load_from_arguments(arguments), _read_options(arguments))
    if arguments.json:
        print_json(_to_document(found))
    else:
        _print(console, found)
    if arguments.out is not None:
        write_class(found.build_class(), arguments.out, None if arguments.json else console)


def _read_options(arguments: argparse.Namespace) -> CalibrationOptions:
    if arguments.like is not None and arguments.like not in DEVICE_CLASSES:
        raise InputError(unknown_name("--like", arguments.like, DEVICE_CLASSES))
    values = {
        figure: getattr(arguments, option.replace("-", "_")) for option, (figure, _, _) in GIVEN.items()
    }
    named = {} if arguments.name is None else {"name": arguments.name}
    return CalibrationOptions(
        seconds=arguments.seconds,
        send_to=None if arguments.to is None else split_address("--to", arguments.to),
        given={figure: value for figure, value in values.items() if value is not None},
        like=None if arguments.like is None else DEVICE_CLASSES[arguments.like],
        device=arguments.device,
        power_file=arguments.power_file,
        **named,
    )


def _listen(console: Console, address: str) -> None:
    host, port = split_address("--listen", address)
    with BandwidthServer(host, port) as server:
        console.print(f"listening on {join_address(host, port)}, for anybody; Ctrl-C ends it", markup=False)
        while True:
            peer, received = server.serve_one()
            console.print(f"{peer}: {received / 1e6:,.1f} MB received", markup=False)


def _print(console: Console, found: Calibration) -> None:
    console.print(f"{found.seconds_per_step:.4g} s per local step ({found.steps.steps} measured)\n")
    for figure, value in found.figures.items():
        print_figure(console, figure, value, found.how[figure])
    for figure, reason in found.missing.items():
        console.print(f"not measured: {figure}: {reason}", markup=False, soft_wrap=True)
    with_flops = f"flops_per_sample = {found.flops_per_sample:.6g} and batch = {found.batch}"
    console.print(f"\nthe class gives these seconds with {with_flops}", markup=False)


def _to_document(found: Calibration) -> dict[str, object]:
    return {
        "name": found.name,
        "seconds_per_step": found.seconds_per_step,
        "steps": found.steps.steps,
        "joules": found.steps.joules,
        "flops_per_sample": found.flops_per_sample,
        "batch": found.batch,
        "utilisation": found.utilisation,
        "figures": dict(found.figures),
        "how": dict(found.how),
        "not_measured": dict(found.missing),
    }
