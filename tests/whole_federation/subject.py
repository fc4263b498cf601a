"""The experiment that all schedules are played with, its world, and what the simulator makes of it."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from cfel.experiment import Experiment
from cfel.membership import FleetChange
from cfel.world import World
from tests.deployment.conftest import deployed
from tests.simulation.drive import outcomes, timeless

HOME = Path("/nowhere")
"""Where nodes have their directories, on disks of memory."""


@cache
def experiment(*, is_patient: bool, returns: bool = False, downloads: bool = False) -> Experiment:
    """The tiny experiment; devices take seconds for an edge round, as in the world.

    With `downloads` they fetch differences.
    """
    waits = {"round_seconds": 20.0, "gossip_seconds": 8.0, "gone_seconds": 6.0, "join_seconds": 60.0}
    if is_patient:
        waits = dict.fromkeys(waits, 300.0)  # no fault lasts so long
    rounds = {"rounds": {"global": 3, "edge": 2, "local": 2}, "scheme": {"name": "hcef_plus"}}
    fail_over = "return" if returns else "stay"
    fetched = {"compression": {"download_theta": 0.05, "download_bits": 8}} if downloads else {}
    return deployed(
        rounds,
        fetched,
        **waits,
        fail_over=fail_over,
        election_seconds=1.5,
        linger_seconds=150.0,
        give_up_seconds=400.0,
        time_scale=0.02,
    )


@cache
def world(*, is_patient: bool, is_large: bool = False, downloads: bool = False) -> World:
    """What all federations of a kind share; nobody changes it.

    `is_large` has it planned and counted as if it had more devices.
    """
    built = experiment(is_patient=is_patient, downloads=downloads).build_world()
    return built.with_settings(lambda setting: replace(setting, is_large=is_large))


@cache
def simulated(
    *,
    is_patient: bool,
    is_large: bool = False,
    downloads: bool = False,
    changes: tuple[FleetChange, ...] = (),
) -> list[dict[str, Any]]:
    """The records of the simulator, in which the fleet changes as it did."""
    changed = world(is_patient=is_patient, is_large=is_large, downloads=downloads).with_changes(changes)
    asked = experiment(is_patient=is_patient, downloads=downloads)
    return timeless([each.record for each in outcomes(asked, changed)])
