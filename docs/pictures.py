"""The pictures of the tour in `docs/images`: `make pictures` runs small jobs and takes them.

Terminals become SVG files, pages become PNG files, taken by a headless Chromium. All commands run in an empty
directory beside a copy of `examples`, so that no path of this machine is in a picture.
"""

import argparse
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from tests.dashboard.chromium import BROWSER, Page, chromium

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
COLUMNS = 100
COLOURS = 256
MOST_BYTES = 150_000
NO_BROWSER = (
    "make pictures needs Chromium, and none of chromium, chromium-browser and google-chrome is installed "
    "(on Debian or Ubuntu: apt install chromium)"
)


@dataclass(frozen=True)
class Terminal:
    """A command whose output is a picture: the name of its file, and its words after `cfel`."""

    name: str
    words: str


@dataclass(frozen=True)
class Screen:
    """A part of a page that is a picture: its file, the page, the lower end in pixels, and its look."""

    name: str
    page: str
    height: int
    dark: bool = False


PLAN = Terminal(
    "tour-plan", "plan examples/devices.csv --time-cap 450 --energy-cap 300 --rows 4 --scheme hcef"
)
RUN = Terminal("tour-run", "run examples/tiny.toml --out runs/tiny")
DEMO = "demo --out runs/demo"
SWEEP = (
    "sweep examples/tiny.toml --over rounds.edge=1,2,4 --over scheme=hcef_plus,cef --seeds 0,1,2 "
    "--target 0.5 --out runs/edge"
)
UP = "up examples/tiny.toml --set rounds.global=40 --out runs/up"
SCREENS = (
    Screen("tour-report-light", "runs/tiny/report.html", 770),
    Screen("tour-report-dark", "runs/tiny/report.html", 770, dark=True),
    Screen("tour-compare", "runs/demo/report.html", 1360),
    Screen("tour-sweep", "runs/edge/report.html", 1160),
)
DASHBOARD = "tour-dashboard"
ROUND_TO_SHOW = 8
SHOWN_ROUND = "Number((document.body.innerText.match(/global round\\s+(\\d+)/i) || [0, 0])[1])"


def run_command(words: str, folder: Path) -> str:
    """Runs a command of cfel in a folder; returns what a terminal would show at the end.

    Raises:
        SystemExit: the command failed.
    """
    done = subprocess.run(  # noqa: S603 — the commands above
        [sys.executable, "-m", "cfel", *words.split()],
        cwd=folder,
        env=_make_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"cfel {words} failed:\n{done.stdout}")
    return done.stdout


def _make_environment() -> dict[str, str]:
    return {**os.environ, "COLUMNS": str(COLUMNS), "NO_COLOR": "1", "PYTHONPATH": str(ROOT / "src")}


def render_terminal(words: str, output: str) -> str:
    """A terminal with a command and its output as an SVG file that loads nothing."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.assemble(("$ ", "bold green"), (f"cfel {words}", "bold")), soft_wrap=True)
    console.print(Text(output.rstrip()), soft_wrap=True)
    svg = console.export_svg(title="cfel", theme=MONOKAI, unique_id="tour")
    # Rich would load its font from another server.
    svg = re.sub(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    return svg.replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace")


def shrink(png: bytes, name: str) -> bytes:
    """The picture with a palette of its most frequent colours: a third of the size, and hardly visible.

    Flat colours stay exact: a palette by regions of colour would give two schemes the same one.

    Raises:
        SystemExit: it is still too large for a page that has several of them.
    """
    buffer = io.BytesIO()
    with Image.open(io.BytesIO(png)) as opened:
        picture = opened.convert("RGB")
    pixels = picture.tobytes()
    counts = Counter(zip(pixels[::3], pixels[1::3], pixels[2::3], strict=True))
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for colour, _ in counts.most_common(COLOURS) for part in colour])
    picture.quantize(palette=palette, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    if len(buffer.getvalue()) > MOST_BYTES:
        raise SystemExit(f"{name}: {len(buffer.getvalue())} bytes, more than {MOST_BYTES}")
    return buffer.getvalue()


def take_picture(page: Page, name: str, folder: Path, to: Path, height: int) -> None:
    """Writes the top of the open page."""
    raw = folder / f"{name}.png"
    page.screenshot(raw)
    with Image.open(raw) as whole:
        whole.crop((0, 0, whole.width, min(height, whole.height))).save(raw)
    (to / f"{name}.png").write_bytes(shrink(raw.read_bytes(), name))


@contextmanager
def start_federation(folder: Path) -> Iterator[str]:
    """Starts a federation of real processes; yields the address of its dashboard, and stops it."""
    process = subprocess.Popen(  # noqa: S603 — the command above
        [sys.executable, "-m", "cfel", *UP.split()],
        cwd=folder,
        env=_make_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield _find_address(process)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def _find_address(process: "subprocess.Popen[str]") -> str:
    assert process.stderr is not None  # noqa: S101 — it is a pipe
    seen = []
    for line in process.stderr:
        seen.append(line)
        if found := re.search(r"dashboard: (http://\S+)", line):
            return found[1]
    raise SystemExit(f"cfel {UP} failed:\n{''.join(seen)}")


def draw_dashboard(page: Page, folder: Path, to: Path) -> None:
    """Writes the dashboard of a federation that has done some rounds."""
    with start_federation(folder) as address:
        page.look(1180, 900)
        page.open(address)
        page.wait(SHOWN_ROUND, lambda shown: shown >= ROUND_TO_SHOW)
        take_picture(page, DASHBOARD, folder, to, 1180)
        page.leave()


def draw_terminals(folder: Path, to: Path) -> None:
    """Runs the commands whose output is shown, and writes it."""
    for each in (PLAN, RUN):
        (to / f"{each.name}.svg").write_text(render_terminal(each.words, run_command(each.words, folder)))


def draw_screens(page: Page, folder: Path, to: Path) -> None:
    """Writes the pictures of the pages that the jobs have made."""
    for screen in SCREENS:
        page.look(1180, 900, dark=screen.dark)
        page.open((folder / screen.page).as_uri())
        take_picture(page, screen.name, folder, to, screen.height)


def draw_all(folder: Path, to: Path) -> None:
    """Runs all jobs in a folder and writes all pictures."""
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    draw_terminals(folder, to)
    # A target that such a short run reaches, from the log alone.
    for words in (DEMO, SWEEP, "report runs/tiny --target 0.6"):
        run_command(words, folder)
    with chromium(folder / "profile") as page:
        draw_screens(page, folder, to)
        draw_dashboard(page, folder, to)


def main(words: Sequence[str] | None = None) -> None:
    """Writes the pictures into the directory given, or into `docs/images`."""
    parser = argparse.ArgumentParser(description="Make the pictures of the tour.")
    parser.add_argument("to", type=Path, nargs="?", default=IMAGES, help="directory (default docs/images)")
    to: Path = parser.parse_args(words).to
    if BROWSER is None:
        raise SystemExit(NO_BROWSER)
    to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        draw_all(Path(folder), to.resolve())


if __name__ == "__main__":
    main()
