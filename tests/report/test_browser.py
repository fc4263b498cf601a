"""The page in a real browser, headless: nothing overflows sideways, on a desktop and on a phone."""

import re
import shutil
import subprocess
from html import escape
from pathlib import Path

import pytest

from tests.dashboard.chromium import chromium

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
# Measures the page after its layout. The window itself is never narrower than 500 pixels, a frame can be.
PROBE = """<script>addEventListener("load", () => {
  const page = document.documentElement, card = document.querySelector(".card");
  const beyond = [...document.querySelectorAll("body *")].filter(element =>
    !element.closest("svg, pre") && element.getBoundingClientRect().right > page.clientWidth + 0.5);
  const heights = [...document.querySelectorAll("figure svg")].map(svg => svg.getBoundingClientRect().height);
  parent.document.documentElement.dataset.probe = [page.clientWidth, page.scrollWidth, beyond.length,
    heights.length, Math.min(...heights), card.scrollWidth - card.clientWidth,
    getComputedStyle(document.body).backgroundColor.replace(/, /g, "/")].join(" ");
});</script>"""
FRAME = """<!DOCTYPE html><meta name="color-scheme" content="light dark"><style>body { margin: 0 }</style>
<iframe style="border: 0; width: %dpx; height: 2000px" srcdoc="%s"></iframe>"""

pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="needs Chromium (apt install chromium)"),
    pytest.mark.timeout(110),
]


def browse(page: Path, profile: Path, *options: str) -> str:
    """What the browser prints when it opens the page."""
    command = [str(BROWSER), *OPTIONS, f"--user-data-dir={profile}", *options, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize(("scheme", "ground"), [("1", "rgb(244/246/248)"), ("0", "rgb(15/19/23)")])
def test_the_page_fits(comparison_page: str, tmp_path: Path, width: int, scheme: str, ground: str) -> None:
    """Width asked for = width laid out = width of the content; 12 figures, none collapsed; light and dark."""
    probed = comparison_page.replace("</body>", f"{PROBE}</body>")
    wrapper = tmp_path / "frame.html"
    wrapper.write_text(FRAME % (width, escape(probed)), encoding="utf-8")
    look = f"--blink-settings=preferredColorScheme={scheme}"
    document = browse(wrapper, tmp_path, "--window-size=1280,2000", look, "--dump-dom")
    probe = re.search(r'data-probe="([^"]+)"', document)
    assert probe is not None
    laid_out, content, outside, figures, least_height, table_overflow, found_ground = probe[1].split()
    assert (laid_out, content, outside) == (str(width), str(width), "0")
    assert figures == "12"
    assert float(least_height) > 100
    assert table_overflow == "0"
    assert found_ground == ground
    assert "HCEF reaches" in document


def test_a_screenshot_is_not_blank(comparison: Path, comparison_page: str, tmp_path: Path) -> None:
    """A blank page of this size compresses to a few kilobytes."""
    assert comparison_page
    picture = tmp_path / "page.png"
    browse(
        comparison / "report.html", tmp_path / "profile", "--window-size=390,2000", f"--screenshot={picture}"
    )
    assert picture.stat().st_size > 50_000


def test_paper_is_light_and_nothing_is_cut_off(
    comparison_page: str, comparison: Path, tmp_path: Path
) -> None:
    """A reader who prefers dark prints the page: white, dark text, and nothing wider than A4."""
    assert comparison_page
    dark = {"name": "prefers-color-scheme", "value": "dark"}
    with chromium(tmp_path / "profile") as page:
        page.look(718, 1000)
        page.send("Emulation.setEmulatedMedia", media="print", features=[dark])
        page.open((comparison / "report.html").as_uri())
        looks = "getComputedStyle(document.body)"
        assert page.value(f"{looks}.backgroundColor") == "rgb(255, 255, 255)"
        assert page.value(f"{looks}.color") == "rgb(27, 31, 36)"
        assert page.value("document.documentElement.scrollWidth") == 718
        # Tables stay tables, although the paper is as narrow as a phone.
        assert page.value("getComputedStyle(document.querySelector('.summary thead')).display") != "none"
        assert page.value("document.querySelector('.summary').getBoundingClientRect().right") <= 718
        page.screenshot(tmp_path / "paper.png")
