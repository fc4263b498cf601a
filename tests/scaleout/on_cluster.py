"""Runs the tiny experiment on a cluster, in a separate process; prints its log and where it ran."""

import json
import sys
from dataclasses import asdict

from cfel.experiment import load_experiment
from cfel.plugins import ANY_CODE
from cfel.scaleout import ray_executor
from cfel.simulation.loop import simulate
from cfel.simulation.state import initial_state


def main(experiment: str, address: str, *changes: str) -> None:
    parsed = load_experiment(experiment, changes, ANY_CODE)
    world = parsed.build_world()
    parameters = parsed.resolve(world).simulation
    with ray_executor(world, parameters, address) as executor:
        nodes = {worker.node for worker in executor.describe_workers()}
        rounds = list(simulate(world, executor, initial_state(world), lambda: 0.0))
    records = [asdict(each.record) for each in rounds]
    print(json.dumps({"nodes": len(nodes), "records": records}))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
