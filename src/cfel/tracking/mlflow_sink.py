"""Runs in MLflow: one MLflow experiment per project, metrics by global round, the run's files as artifacts.

Where they are stored is up to MLflow: MLFLOW_TRACKING_URI, or by default a database in the current folder.
"""

import time
from collections.abc import Mapping

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from cfel.runlog import RoundRecord
from cfel.runlog.records import read_metrics
from cfel.tracking.follow import RunEnd, TrackedRun

_STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
# What MLflow takes at once, and the longest value of a parameter.
_MOST_PARAMETERS = 100
_MOST_CHARACTERS = 6000


def open_sink(run: TrackedRun) -> "MlflowSink":
    """Opens a sink for a run."""
    client = MlflowClient()
    if run.earlier is not None:
        client.update_run(run.earlier, status="RUNNING")
        return MlflowSink(client, run.earlier)
    found = client.get_experiment_by_name(run.project)
    experiment = client.create_experiment(run.project) if found is None else found.experiment_id
    run_id = client.create_run(
        experiment, run_name=run.name, tags={"cfel.directory": str(run.directory)}
    ).info.run_id
    values = [Param(name, str(value)[:_MOST_CHARACTERS]) for name, value in run.settings.items()]
    for begin in range(0, len(values), _MOST_PARAMETERS):
        client.log_batch(run_id, params=values[begin : begin + _MOST_PARAMETERS])
    return MlflowSink(client, run_id)


class MlflowSink:
    """A run of MLflow."""

    def __init__(self, client: MlflowClient, run_id: str) -> None:
        self._client, self._run_id = client, run_id
        self._step = 0

    @property
    def run_id(self) -> str:
        """MLflow's."""
        return self._run_id

    def log_round(self, record: RoundRecord) -> None:
        """Logs a metric per value, with the global round as the step."""
        self._step = record.round
        self._log(read_metrics(record))

    def finish(self, end: RunEnd) -> None:
        """Logs the summary and the files, and ends the run."""
        self._log({f"summary.{name}": value for name, value in end.summary.items()})
        for path in end.files:
            self._client.log_artifact(self._run_id, str(path))
        self._client.set_terminated(self._run_id, _STATUS[end.status])

    def _log(self, values: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        metrics = [Metric(name, value, now, self._step) for name, value in values.items()]
        self._client.log_batch(self._run_id, metrics=metrics)
