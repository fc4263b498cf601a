"""The dashboard in a real browser, headless, with data flowing."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cfel.dashboard import Dashboard, RunWatcher
from cfel.runlog import RunWriter
from tests.dashboard.chromium import BROWSER, Page, chromium
from tests.dashboard.conftest import EVIL, Scene, federation, served
from tests.report.conftest import learning_curve, record, ring, write_run

TOKEN = "correct-horse-battery-staple"  # noqa: S105 — a made-up one
BEYOND = """[...document.querySelectorAll("body *")].filter(element => !element.closest("svg") &&
  element.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5).length"""
TEXT = "document.getElementById('tiles')?.innerText ?? ''"

pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="needs Chromium (apt install chromium)"),
    pytest.mark.timeout(110),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """One browser for all tests of this file."""
    with chromium(tmp_path_factory.mktemp("profile")) as found:
        yield found


def test_it_follows_the_state_without_errors(page: Page, address: str, scene: Scene) -> None:
    page.leave()
    page.look(1280, 900)
    page.open(address)
    page.wait(TEXT, lambda text: "13 of 40" in text)
    for done in (13, 14, 20):
        scene.status = federation(done)
        page.wait(f"({TEXT}).includes('{done + 1} of 40')")
    assert page.value("document.querySelectorAll('#devices tbody tr').length") == 64
    assert page.value("document.querySelectorAll('#heat rect').length") == 128
    assert page.value("document.querySelectorAll('#backhaul line.down').length") == 2
    assert page.value("document.querySelectorAll('#backhaul .crown').length") == 1
    assert page.value("document.querySelectorAll('#accuracy polyline').length") == 1
    assert page.value("document.querySelectorAll('#budgets polyline').length") == 3
    assert page.value("document.querySelectorAll('#elections li').length") == 3
    assert "edge-3 is elected" in page.value("document.querySelector('#elections li').innerText")
    assert "15 uploads rejected" in page.value("document.getElementById('rejected').innerText")
    assert "Energy lasts to about round 35 of 40" in page.value(
        "document.getElementById('budgets').innerText"
    )
    assert page.value("document.querySelector('tr.slow .name').innerText").startswith("cam-06")
    assert page.value("document.getElementById('live').dataset.state") == "live"
    assert page.complaints == []


def test_markup_from_the_network_is_text(page: Page, address: str, scene: Scene) -> None:
    scene.status = replace(scene.status, name=EVIL, node=EVIL, coordinator=EVIL, problem=EVIL, scheme=EVIL)
    page.leave()
    page.open(address)
    page.wait("document.getElementById('name').textContent", lambda text: text == EVIL)
    assert page.value("document.getElementById('problem').textContent") == EVIL
    names = page.value("[...document.querySelectorAll('#devices .name')].map(cell => cell.textContent)")
    assert EVIL in names
    assert page.value("document.querySelectorAll('img, body script:not(:last-of-type)').length") == 0
    assert "owned" not in page.value("document.title").replace(EVIL, "")
    assert page.complaints == []


@pytest.mark.parametrize(
    ("width", "dark", "ground"), [(1280, False, "rgb(244, 246, 248)"), (380, True, "rgb(15, 19, 23)")]
)
def test_it_fits(page: Page, address: str, tmp_path: Path, width: int, dark: bool, ground: str) -> None:
    page.look(width, 900, dark=dark)
    page.open(address)
    page.wait(TEXT, lambda text: "of 40" in text)
    assert page.value("document.documentElement.scrollWidth") == width
    assert page.value(BEYOND) == 0
    assert page.value("getComputedStyle(document.body).backgroundColor") == ground
    assert page.value("Math.min(...[...document.querySelectorAll('svg')].map(svg => svg.clientHeight))") > 100
    page.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 50_000


def test_order_and_filter_of_the_devices(page: Page, address: str) -> None:
    page.look(1280, 900)
    page.open(address)
    page.wait("document.querySelectorAll('#devices tbody tr').length", lambda rows: rows == 64)
    page.value("[...document.querySelectorAll('th button')].at(-2).click()")
    seconds = page.value(
        "[...document.querySelectorAll('#devices tbody tr')].map(row => row.cells[7].innerText)"
    )
    known = [float(text) for text in seconds if text != "–"]
    assert known == sorted(known, reverse=True)
    page.value(
        "const box = document.getElementById('filter'); box.value = 'ABSENT';"
        "box.dispatchEvent(new Event('input'))"
    )
    page.wait("document.querySelectorAll('#devices tbody tr').length", lambda rows: rows == 8)


@pytest.mark.parametrize(
    ("finished", "text"), [(True, "No device has an order"), (False, "No round has been planned")]
)
def test_a_heat_map_without_orders_says_why(page: Page, scene: Scene, finished: bool, text: str) -> None:
    idle = [replace(each, rho=None, theta=None) for each in scene.status.clusters[0].devices]
    clusters = (replace(scene.status.clusters[0], devices=tuple(idle)),)
    history = scene.status.history if finished else ()
    scene.status = replace(scene.status, clusters=clusters, links=(), history=history)
    page.look(1280, 900)
    with served(lambda: Dashboard(scene.now, 0.05)) as address:
        page.open(address)
        page.wait("document.querySelector('#heat .chart').textContent", lambda shown: text in shown)
        assert page.complaints == []


def test_a_lost_connection_is_reported(page: Page, scene: Scene) -> None:
    page.look(1280, 900)
    with served(lambda: Dashboard(scene.now, 0.05)) as address:
        page.open(address)
        page.wait(TEXT, lambda text: "of 40" in text)
    page.wait("document.getElementById('live-text').textContent", lambda text: "trying again" in text)


def test_the_token_is_asked_for(page: Page, scene: Scene) -> None:
    with served(lambda: Dashboard(scene.now, 0.05, TOKEN)) as address:
        page.open(address)
        page.value(f"document.getElementById('token').value = {json.dumps(TOKEN)}")
        page.value("document.querySelector('form').submit()")
        page.wait(TEXT, lambda text: "of 40" in text)
        assert TOKEN not in page.value("location.href + document.cookie")


def test_a_run_directory_grows_in_the_browser(page: Page, tmp_path: Path) -> None:
    """A finished run beside one that is being written: two curves, and rounds arrive."""
    fleet = ring(8, 8, 90_000.0, 15_000.0)
    write_run(tmp_path / "cef", "cef", 0, learning_curve("cef", 0, 10), fleet=fleet, plans=True)
    write_run(tmp_path / "hcef", "hcef", 0, [record(1, 0.2, 10.0, 5.0)], fleet=fleet, plans=True)
    watcher = RunWatcher(tmp_path)
    with served(lambda: Dashboard(watcher.snapshot, watcher.changes(0.05))) as address:
        page.leave()
        page.look(1280, 900)
        page.open(address)
        page.wait(TEXT, bool)
        before = page.value("document.querySelectorAll('#accuracy polyline').length")
        writer = RunWriter(tmp_path / "hcef")
        for number in range(2, 5):
            writer.append(record(number, 0.1 * number, 10.0 * number, 5.0 * number))
        writer.close()
        page.wait(TEXT, lambda text: "40.0\N{NO-BREAK SPACE}%" in text)
        page.wait("document.querySelectorAll('#accuracy polyline').length", lambda lines: lines == 2)
        assert before == 1
        assert page.value("document.getElementById('federation').hidden") is True
        assert page.complaints == []
