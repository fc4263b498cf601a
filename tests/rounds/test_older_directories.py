"""Run directories of earlier versions, whose experiments lack keys that were added since."""

from pathlib import Path

from cfel.experiment import Experiment, experiment_toml
from cfel.rounds.run_directory import reject_other_experiment


def test_a_directory_without_newer_keys_can_be_resumed(tmp_path: Path) -> None:
    text = experiment_toml(Experiment())
    older = [line for line in text.splitlines() if not line.startswith(("download_theta", "download_bits"))]
    (tmp_path / "experiment.toml").write_text("\n".join(older))
    reject_other_experiment(tmp_path, text)
