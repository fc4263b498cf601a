"""Texts from peers: a snapshot with one never fails, forges a line or brings escape codes to a terminal."""

import io
import json
import re
from dataclasses import replace

import pytest
from rich.console import Console

from cfel.cli.up import FederationView
from cfel.dashboard.metrics import metrics_text
from cfel.deployment.security.limits import MOST_CHARACTERS, count_rejection, shorten
from cfel.status import ClusterStatus, Curve, DeviceStatus, ElectionEvent, Status

HOSTILE = "a\ud800b\nc\rd\x1b[31me\x9bf\u2028g\u202eh\x00"
SAFE = r"a\ud800b\nc\rd\x1b[31me\x9bf\u2028g\u202eh\x00"
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u202e\ud800-\udfff]")


def hostile_status() -> Status:
    device = DeviceStatus(device=0, name=HOSTILE, source=HOSTILE, version=HOSTILE)
    return Status(
        node=HOSTILE,
        name=HOSTILE,
        scheme=HOSTILE,
        coordinator=HOSTILE,
        term=1,
        problem=HOSTILE,
        version=HOSTILE,
        clusters=(ClusterStatus(cluster=0, node=HOSTILE, size=1, devices=(device,), version=HOSTILE),),
        curves=(Curve(name=HOSTILE),),
        elections=(ElectionEvent(unix_seconds=0.0, term=1, kind="elected", node=HOSTILE),),
        rejected=((HOSTILE, 2), (SAFE, 3)),
    )


def test_the_document_of_any_status_can_be_written_and_read() -> None:
    status = hostile_status()
    document = json.loads(status.to_json())
    assert document["problem"] == document["clusters"][0]["devices"][0]["name"] == SAFE
    assert document["rejected"] == {SAFE: 5}
    assert Status.from_json(status.to_json()) == status
    assert Status.from_json(json.dumps(document | {"node": "x\ud800"})).node == r"x\ud800"


def test_metrics_of_any_status() -> None:
    text = metrics_text(hostile_status())
    text.encode()
    assert not CONTROL.search(text)


def test_the_view_of_a_federation() -> None:
    out = io.StringIO()
    view = FederationView(3, Console(file=out, width=200))
    view.update({0: hostile_status()})
    view.print_line(view.format_line())
    Console(file=out, width=200).print(view.build_table())
    out.getvalue().encode()
    assert not CONTROL.search(out.getvalue())


def test_reasons_of_rejections_are_one_short_line() -> None:
    counts: dict[str, int] = {}
    count_rejection(counts, HOSTILE, set())
    assert counts == {SAFE: 1}
    assert len(shorten("\x1b" * 10**6)) <= MOST_CHARACTERS


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (Status(node="x", source="simulation"), ""),
        (Status(node="x", majority=True, coordinator="edge-0"), ""),
        (Status(node="x", majority=True), "no coordinator is elected"),
        (Status(node="x", majority=False, coordinator="edge-0"), "no majority of edge servers is in touch"),
        (Status(node="x", majority=False, phase="finished"), ""),
    ],
)
def test_readiness(status: Status, reason: str) -> None:
    assert status.unready == reason
    assert replace(status, problem="something else").unready == reason
