"""Alert rules and the Grafana board: they ask for metrics and labels that exist."""

import json
import re
from pathlib import Path

import yaml

from cfel.dashboard.metrics import list_families
from cfel.status import DEVICE_STATES, PHASES
from tests.dashboard.conftest import federation

MONITORING = Path(__file__).parents[2] / "containers" / "monitoring"
RULES = yaml.safe_load((MONITORING / "alerts.yaml").read_text(encoding="utf-8"))["groups"][0]["rules"]
BOARD = json.loads((MONITORING / "grafana.json").read_text(encoding="utf-8"))
METRICS = {
    name: {label for labels, _ in samples for label in labels}
    for name, _, _, samples in list_families(federation())
}
# Prometheus' own labels.
KNOWN = {"job", "instance"}


def check_expression(text: str) -> None:
    for name in re.findall(r"cfel_\w+", text):
        assert name in METRICS, name
    for name, inside in re.findall(r"(cfel_\w+)\{([^}]*)\}", text):
        assert set(re.findall(r"(\w+)=", inside)) <= METRICS[name]
    for name, values in re.findall(r'(state|phase)=~?"([^"]+)"', text):
        assert set(values.split("|")) <= set(DEVICE_STATES if name == "state" else PHASES)
    for labels in re.findall(r"by \(([^)]*)\)", text):
        assert set(labels.split(", ")) <= KNOWN.union(*METRICS.values())


def test_alerts_ask_for_metrics_that_exist_and_say_what_to_do() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES)
    for rule in RULES:
        check_expression(rule["expr"])
        assert set(rule["annotations"]) == {"summary", "action"}
        assert rule["labels"]["severity"] in ("info", "warning", "critical")


def test_the_board_asks_for_metrics_that_exist() -> None:
    for panel in BOARD["panels"]:
        for target in panel["targets"]:
            check_expression(target["expr"])
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in BOARD["panels"]}
    assert len(places) == len(BOARD["panels"])
