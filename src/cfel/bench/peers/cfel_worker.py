"""cfel itself in `cfel bench peers`: rounds with plans, estimates, top-k, gossip and the log on disk.

Run as `python -m cfel.bench.peers.cfel_worker SOCKET WORKLOAD WORKERS` in cfel's own environment.
"""

import sys
from dataclasses import replace

from cfel.bench.peers.workload import RaceLink, Workload, from_argument
from cfel.bench.settings import BenchSetting, build_bench_parameters, build_bench_world
from cfel.bench.simulation import open_timed_rounds


def describe_setting(workload: Workload) -> BenchSetting:
    """The workload as a setting of `cfel bench simulation`; a round is one edge round of eight clusters."""
    everybody = workload.cohort == workload.users
    return BenchSetting(
        name=workload.name,
        model=workload.model,
        shape=workload.shape,
        classes=workload.classes,
        devices=workload.users,
        samples=workload.samples,
        batch=workload.batch,
        local_steps=workload.steps,
        edge_rounds=1,
        present=None if everybody else workload.cohort,
        momentum_state="reset",
    )


def main(address: str, argument: str, workers: str) -> None:
    """Runs rounds until the race is over."""
    link, workload = RaceLink(address), from_argument(argument)
    setting = describe_setting(workload)
    world = build_bench_world(setting)
    parameters = replace(build_bench_parameters(setting, world), workers=int(workers))
    with open_timed_rounds(world, parameters) as rounds:
        for done in rounds:
            # Who takes part is drawn at random: the time of a round of exactly the cohort's steps counts.
            share = workload.cohort * workload.steps / max(1, done.steps)
            link.report(done.seconds * share)
            if not link.wait_for_turn():
                return


if __name__ == "__main__":
    main(*sys.argv[1:])
