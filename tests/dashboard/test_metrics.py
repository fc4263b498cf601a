"""The metrics, to the letter."""

import re

from cfel.dashboard.metrics import metrics_text
from cfel.status import ClusterStatus, DeviceStatus, RoundPoint, Status
from tests.dashboard.conftest import EVIL, federation

LINE = re.compile(
    r"(# HELP [a-z_]+ [^\n]+|# TYPE [a-z_]+ (gauge|counter)|"
    r'[a-z_]+(\{[a-z]+="([^"\\\n]|\\["\\n])*"(,[a-z]+="([^"\\\n]|\\["\\n])*")*\})? -?[0-9.e+-]+)'
)


def test_every_line_has_the_format() -> None:
    text = metrics_text(federation())
    assert text.endswith("\n")
    for line in text.splitlines():
        assert LINE.fullmatch(line), line


def test_numbers() -> None:
    status = Status(
        node="edge-1",
        name='a "b"\\\nc',
        phase="gossip",
        round=3,
        term=7,
        coordinator="edge-1",
        seconds=12.5,
        joules_budget=100.0,
        clusters=(
            ClusterStatus(cluster=0, node="edge-0", state="suspect"),
            ClusterStatus(
                cluster=1,
                node="edge-1",
                size=3,
                devices=tuple(
                    DeviceStatus(device=n, state=s) for n, s in enumerate(("late", "done", "done"))
                ),
                rho_mean=0.5,
            ),
        ),
        history=(
            RoundPoint(round=1, seconds=1.0, joules=1.0, accuracy=0.25, loss=2.0, device_accuracy_mean=0.5),
            RoundPoint(round=2, seconds=2.0, joules=2.0, loss=1.0, wall_seconds=0.5, wire_bytes=500),
        ),
        rejected=(("not finite", 4),),
        problem="not in touch: edge-0",
        version="0.1",
        majority=True,
        leader_changes=3,
        wire_bytes=1000,
        certificate_expires=2e9,
    )
    lines = metrics_text(status).splitlines()
    for line in (
        'cfel_info{node="edge-1",experiment="a \\"b\\"\\\\\\\\nc",scheme="",source="edge",version="0.1"} 1',
        "cfel_round 3",
        "cfel_rounds_finished 2",
        'cfel_phase{phase="gossip"} 1',
        'cfel_phase{phase="training"} 0',
        "cfel_term 7",
        "cfel_coordinator 1",
        "# TYPE cfel_spent_seconds_total counter",
        "cfel_spent_seconds_total 12.5",
        "cfel_budget_joules 100.0",
        'cfel_quality{metric="accuracy",unit="%"} 0.25',
        'cfel_device_quality{metric="accuracy",unit="%",statistic="mean"} 0.5',
        "cfel_loss 1.0",
        'cfel_edge_up{cluster="0",node="edge-0"} 0',
        'cfel_edge_up{cluster="1",node="edge-1"} 1',
        'cfel_devices{cluster="1",state="done"} 2',
        'cfel_devices{cluster="1",state="late"} 1',
        'cfel_cluster_rho_mean{cluster="1"} 0.5',
        'cfel_uploads_rejected_total{reason="numbers out of bounds"} 4',
        "cfel_ready 1",
        "cfel_problem 1",
        "cfel_majority 1",
        "cfel_elections_total 3",
        "# TYPE cfel_elections_total counter",
        "cfel_round_duration_seconds 0.5",
        "cfel_wire_bytes_total 1000",
        "cfel_certificate_expiry_timestamp_seconds 2000000000.0",
        "cfel_edges_doubled 0",
        "cfel_devices_doubled 0",
    ):
        assert line in lines
    assert not [line for line in lines if "budget_seconds" in line or line.startswith("cfel_rounds ")]


def test_a_family_is_announced_once_and_before_its_samples() -> None:
    names = re.findall(r"# TYPE (\S+)", metrics_text(federation()))
    assert len(names) == len(set(names)) == 26
    # What others send is in /status.json; a label would keep it for weeks.
    assert EVIL.replace('"', '\\"') not in metrics_text(federation())


def test_labels_are_few_whatever_others_send() -> None:
    """Reasons quote what came in, and there may be any number of clusters."""
    rejected = tuple((f"loss = {n}: must be finite", 1) for n in range(30))
    strange = tuple((f"field {n}: is missing", 2) for n in range(30))
    clusters = tuple(
        ClusterStatus(cluster=n, node=f"edge-{n}", size=1, devices=(DeviceStatus(device=n, state="done"),))
        for n in range(1000)
    )
    status = Status(node="edge-0", source="edge", rejected=rejected + strange, clusters=clusters)
    lines = metrics_text(status).splitlines()
    assert [line for line in lines if line.startswith("cfel_uploads_rejected_total")] == [
        'cfel_uploads_rejected_total{reason="invalid message"} 60',
        'cfel_uploads_rejected_total{reason="numbers out of bounds"} 30',
    ]
    assert 'cfel_devices{cluster="others",state="done"} 900' in lines
    assert len(lines) < 1500
