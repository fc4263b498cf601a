"""`cfel devices` and `cfel calibrate`: device classes, read, derived and measured; and published traces."""

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from cfel.cli import options, output
from cfel.deployment.protocol.addresses import join_address, split_address
from cfel.durable import replace_file
from cfel.errors import InputError, unknown_name
from cfel.system.device_classes import (
    DEFAULT_FLOPS_PER_CYCLE,
    DEFAULT_VOLTS,
    DEVICE_CLASSES,
    FIGURES,
    RADIOS,
    ClassFile,
    DescribedClass,
    ProfileOptions,
    class_file_toml,
    derive_class,
    read_library,
    read_power_profile,
)
from cfel.system.public_traces import PublicAvailability, Work, read_public_trace
from cfel.wording import plural

if TYPE_CHECKING:
    from cfel.calibration import Calibration, CalibrationOptions

EXAMPLES = {
    "devices": """  cfel devices
  cfel devices raspberry-pi-5
  cfel devices --import power_profile.xml --name my-phone --to my-phone.toml
  cfel devices --convert state_traces.json --to charging.csv""",
    "calibrate": """  cfel calibrate --listen 0.0.0.0:7411              (on another machine)
  cfel calibrate experiment.toml --to 10.0.0.1:7411 --out my-board.toml
  cfel calibrate experiment.toml --watts 6.2 --like raspberry-pi-4""",
}
GIVEN = {
    "watts": ("compute_watts", "W", "while training, from a power meter, instead of counters"),
    "radio-watts": ("radio_watts", "W", "while sending, from a power meter"),
    "uplink": ("uplink_bits_per_second", "N", "bits per second of an upload, instead of --to"),
}


def add_devices_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="show every figure of this class")
    parser.add_argument(
        "--import",
        dest="profile",
        type=Path,
        metavar="XML",
        help="derive a class from an Android power profile",
    )
    parser.add_argument(
        "--convert",
        type=Path,
        metavar="TRACE",
        help="convert a trace of FLASH or FedScale to the table --to",
    )
    group = parser.add_argument_group("with --convert, for capacities of FedScale")
    group.add_argument("--batch", type=int, metavar="N", help="samples in a local step")
    group.add_argument("--parameters", type=int, metavar="N", help="parameters of the model")
    group.add_argument("--like", metavar="CLASS", help="device class whose watts the devices use")
    group = parser.add_argument_group("with --import")
    group.add_argument("--name", dest="new_name", metavar="NAME", help="name of the new class (required)")
    group.add_argument("--to", type=Path, metavar="FILE", help="write the class to this TOML file")
    group.add_argument("--radio", choices=RADIOS, default=RADIOS[0], help="which radio uploads")
    group.add_argument(
        "--uplink",
        type=options.parse_positive,
        metavar="N",
        help="its bits per second (default: median LTE, 6e6)",
    )
    group.add_argument(
        "--volts",
        type=options.parse_positive,
        metavar="V",
        help=f"default: the profile's, or {DEFAULT_VOLTS}",
    )
    group.add_argument(
        "--flops-per-cycle",
        default="",
        metavar="N,N,…",
        help=f"of one core, for each cluster of cores (default {DEFAULT_FLOPS_PER_CYCLE:g})",
    )
    options.add_json_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Lists the library, shows one class, or imports one."""
    console = Console(highlight=False)
    if arguments.profile is not None:
        _import_profile(console, arguments)
        return
    if arguments.convert is not None:
        _convert_trace(console, arguments)
        return
    library = read_library()
    if arguments.name is not None:
        _show(console, _find(library, arguments.name), library, arguments.json)
    elif arguments.json:
        output.print_json([_to_document(each) for each in library.classes])
    else:
        _list(console, library)


def _find(library: ClassFile, name: str) -> DescribedClass:
    known = {each.device.name: each for each in library.classes}
    if name not in known:
        raise InputError(unknown_name("device class", name, known))
    return known[name]


def _to_document(described: DescribedClass) -> dict[str, object]:
    figures = {figure: getattr(described.device, figure) for figure in FIGURES}
    head = {"name": described.device.name, "title": described.device.source}
    return {**head, **figures, "how": dict(described.how)}


def _list(console: Console, library: ClassFile) -> None:
    table = output.new_table("class", "GFLOP/s", "W", "sending W", "Mbit/s up", "at half clock", "battery kJ")
    for each in (described.device for described in library.classes):
        half = each.clock_static + (1 - each.clock_static) * 0.5**each.clock_exponent
        table.add_row(
            each.name,
            f"{each.flops_per_second / 1e9:.1f}",
            f"{each.compute_watts:.2f}",
            f"{each.radio_watts:.2f}",
            f"{each.uplink_bits_per_second / 1e6:g}",
            f"{100 * half:.0f} % J",
            "–" if math.isinf(each.battery_joules) else f"{each.battery_joules / 1e3:.1f}",
        )
    output.print_table(console, "Device classes", table)
    console.print("[dim]origin of each figure: cfel devices NAME[/]")


def _show(console: Console, described: DescribedClass, library: ClassFile, as_json: bool) -> None:
    cited = {key: text for key, text in library.sources.items() if f"[{key}]" in str(described.how)}
    if as_json:
        output.print_json({**_to_document(described), "sources": cited})
        return
    console.print(f"[bold]{escape(described.device.name)}[/]  {escape(described.device.source)}\n")
    for figure in FIGURES:
        print_figure(console, figure, getattr(described.device, figure), described.how.get(figure, "default"))
    for key, text in cited.items():
        console.print(f"\n[{key}] {text}", markup=False, soft_wrap=True)


def print_figure(console: Console, figure: str, value: float, how: str) -> None:
    console.print(f"{figure} = {value:g}", markup=False)
    console.print(f"  {how}", markup=False, style="dim", soft_wrap=True)


def write_class(described: DescribedClass, to: Path | None, console: Console | None) -> None:
    """Writes a class to a file, if one was named, and says so."""
    if to is not None:
        replace_file(to, class_file_toml(ClassFile((described,), {})).encode())
        if console is not None:
            console.print(f"\nwritten to {to}; use it with class_files = […]", markup=False)


def _import_profile(console: Console, arguments: argparse.Namespace) -> None:
    if arguments.new_name is None:
        raise InputError("--import: needs --name, the name of the new class")
    wanted = ProfileOptions(
        flops_per_cycle=_parse_rates(arguments.flops_per_cycle),
        radio=arguments.radio,
        uplink_bits_per_second=arguments.uplink,
        volts=arguments.volts,
    )
    title = f"{arguments.new_name}, from {arguments.profile.name}"
    found = derive_class(read_power_profile(arguments.profile), arguments.new_name, title, wanted)
    _show(console, found, ClassFile((found,), {}), arguments.json)
    write_class(found, arguments.to, None if arguments.json else console)


def _convert_trace(console: Console, arguments: argparse.Namespace) -> None:
    if arguments.to is None:
        raise InputError("--convert: needs --to, the table to write")
    found = read_public_trace(arguments.convert)
    if isinstance(found, PublicAvailability):
        table, devices, key = found.to_csv(), len(found.intervals), "fleet.availability.file"
        more = {"intervals": sum(map(len, found.intervals)), "left_out": found.left_out}
    else:
        table, devices, key = found.to_csv(_read_work(arguments)), len(found.speeds), "fleet.conditions.file"
        more = {}
    replace_file(arguments.to, table.encode())
    if arguments.json:
        output.print_json({"file": str(arguments.to), "devices": devices, **more})
        return
    left_out = f" ({more['left_out']:,} never were, and are left out)" if more.get("left_out") else ""
    console.print(f"{arguments.to}: {plural(devices, 'device')}{left_out}; use it as {key}", markup=False)


def _read_work(arguments: argparse.Namespace) -> Work:
    for option in ("batch", "parameters", "like"):
        if getattr(arguments, option) is None:
            raise InputError(f"--convert: capacities of FedScale need --{option}")
    device = _find(read_library(), arguments.like).device
    return Work(arguments.batch, 32.0 * arguments.parameters, device.compute_watts, device.radio_watts)


def _parse_rates(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(word) for word in options.parse_names(text))
    except ValueError:
        raise InputError(f"--flops-per-cycle {text!r}: must be numbers separated by commas") from None


def add_calibrate_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "experiment", nargs="?", type=Path, metavar="EXPERIMENT.toml", help="whose model to train"
    )
    parser.add_argument("--name", metavar="NAME", help="name of the class (default: the host's)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the class to this TOML file")
    parser.add_argument("--to", metavar="HOST:PORT", help="measure the uplink to a host that listens")
    parser.add_argument("--listen", metavar="HOST:PORT", help="be that host, until Ctrl-C; trains nothing")
    parser.add_argument(
        "--seconds", type=options.parse_positive, default=10.0, metavar="S", help="time to train (default 10)"
    )
    parser.add_argument("--like", metavar="CLASS", help="take what cannot be measured from this class")
    for option, (_, letter, text) in GIVEN.items():
        parser.add_argument(f"--{option}", type=options.parse_positive, metavar=letter, help=text)
    parser.add_argument("--power-file", type=Path, metavar="FILE", help="a power monitor's microwatts")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="torch device")
    options.add_set_option(parser)
    options.add_json_option(parser)
    parser.set_defaults(run=calibrate, engine=None)


def calibrate(arguments: argparse.Namespace) -> None:
    """Measures this machine, prints what was found and what was not, and writes the class."""
    # What the other commands here do without: torch, and the counters of a host.
    from cfel import calibration

    console = Console(highlight=False)
    if arguments.listen is not None:
        _listen(console, arguments.listen)
        return
    if arguments.experiment is None:
        raise InputError("EXPERIMENT.toml: is needed, unless --listen is given")
    found = calibration.calibrate(options.load_from_arguments(arguments), _read_options(arguments))
    if arguments.json:
        output.print_json(_describe_calibration(found))
    else:
        _print_calibration(console, found)
    if arguments.out is not None:
        write_class(found.build_class(), arguments.out, None if arguments.json else console)


def _read_options(arguments: argparse.Namespace) -> "CalibrationOptions":
    from cfel.calibration import CalibrationOptions

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
    from cfel.calibration import BandwidthServer

    host, port = split_address("--listen", address)
    with BandwidthServer(host, port) as server:
        console.print(f"listening on {join_address(host, port)}, for anybody; Ctrl-C ends it", markup=False)
        while True:
            peer, received = server.serve_one()
            console.print(f"{peer}: {received / 1e6:,.1f} MB received", markup=False)


def _print_calibration(console: Console, found: "Calibration") -> None:
    console.print(f"{found.seconds_per_step:.4g} s per local step ({found.steps.steps} measured)\n")
    for figure, value in found.figures.items():
        print_figure(console, figure, value, found.how[figure])
    for figure, reason in found.missing.items():
        console.print(f"not measured: {figure}: {reason}", markup=False, soft_wrap=True)
    with_flops = f"flops_per_sample = {found.flops_per_sample:.6g} and batch = {found.batch}"
    console.print(f"\nthe class gives these seconds with {with_flops}", markup=False)


def _describe_calibration(found: "Calibration") -> dict[str, object]:
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
