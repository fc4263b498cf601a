"""Runs every kind of model on one cluster, in a separate process; prints the digests of all rounds."""

import json
import sys

from cfel.scaleout import connect_cluster, ray_executor
from cfel.simulation.loop import simulate
from cfel.simulation.state import initial_state
from tests.architectures import THREE_ROUNDS, TWELVE
from tests.simulation.drive import tiny


def run(name: str, address: str) -> list[str]:
    # One worker, as starting it takes most of the time; its bits do not depend on how many there are.
    experiment = tiny(THREE_ROUNDS, TWELVE[name], simulation={"engine": "ray", "workers": 1})
    world = experiment.build_world()
    parameters = experiment.resolve(world).simulation
    with ray_executor(world, parameters, address) as executor:
        rounds = simulate(world, executor, initial_state(world), lambda: 0.0)
        return [each.record.model_sha256 for each in rounds]


def main(address: str) -> None:
    with connect_cluster(address):
        print(json.dumps({name: run(name, address) for name in TWELVE}))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
