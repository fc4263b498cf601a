"""Schedules of faults with whole nodes: no promise is broken, and planted bugs are found."""

import asyncio
from dataclasses import replace

import pytest

from tests.deployment.memory_federation import until
from tests.deployment.virtual_time import run_virtually
from tests.whole_federation.bugs import plant
from tests.whole_federation.federation import WholeFederation, play
from tests.whole_federation.history import History
from tests.whole_federation.properties import find_violations, records_are_equal_everywhere
from tests.whole_federation.schedule import DEVICES, EDGES, Schedule, draw_schedule
from tests.whole_federation.subject import HOME, world


def test_a_run_goes_on_when_the_votes_of_all_edge_servers_are_deleted() -> None:
    """As an operator may do; the records that they store still say which terms there have been."""
    history = History(Schedule(0, True, ()), world(is_patient=True))

    async def run() -> int:
        async with WholeFederation(history.schedule, history) as federation:
            federation.start(*DEVICES)
            for _ in range(3):
                federation.start(*EDGES)
                await until("one leads", lambda: federation.coordinator() is not None)
                await asyncio.sleep(9.0)
                for edge in EDGES:
                    await federation.kill(edge)
            for edge in EDGES:
                del federation.disks[edge].files[HOME / str(edge) / "vote.json"]
            federation.start(*EDGES)
            await federation.finished(300.0)
            history.disks = {member: disk.files for member, disk in federation.disks.items()}
            return len(history.log(EDGES[0]))

    assert run_virtually(run()) == 3
    assert not list(records_are_equal_everywhere(history))


def check(*seeds: int, is_large: bool = False, downloads: bool = False) -> None:
    """Plays schedules; tells which promise was broken in which."""
    for seed in seeds:
        schedule = replace(draw_schedule(seed), is_large=is_large, downloads=downloads)
        violations = find_violations(play(schedule))
        assert not violations, "\n".join((str(schedule), *violations))


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_no_schedule_breaks_a_promise(first: int) -> None:
    check(*range(first, first + 10))


def test_no_schedule_breaks_a_promise_where_a_fleet_is_planned_by_clusters() -> None:
    """The last four have found a defect.

    100: devices moved while their old edge server could not be reached; 128: an edge server that had not been
    asked took part by the others' price; 55: each question waited again for an edge server that was gone;
    138: a device had left, and then its edge server.
    """
    check(0, 1, 2, 100, 128, 55, 138, is_large=True)


@pytest.mark.parametrize("is_large", [False, True])
def test_no_schedule_breaks_a_promise_where_devices_fetch_differences(is_large: bool) -> None:
    check(*range(6), is_large=is_large, downloads=True)


def test_an_edge_server_that_misses_the_end_has_its_record_and_its_state() -> None:
    """Each in another way.

    49: it hears of the end from one that missed the last gossip; 161: it took part in no round at all;
    193: it missed more than one round, and is there again for the last record only.
    """
    check(49, 161, 193)


def test_edge_servers_join_and_leave_under_faults() -> None:
    """Each has found a defect.

    1: a device was sent back to a home that it had been drained to; 34: the coordinator leaves, and its
    successor waited for it; 81: a device moved with the last record, to an edge server that had ended;
    140: an edge server hears of a record before it has those before it; 4: its log grows while it asks who
    has left; 312: one that has left is started again; 21: an edge server that comes back gives its model,
    with an upload that nobody heard of, to one that joins; 451: a change that waits and is not possible any
    more has all others refused, also the end of a pause; 5001: the coordinator loses its term before it
    releases the others, and they do not wait for the one that missed the end; 20635: one that missed the
    end took what the last record changes for true, and left. 515 was an error of the checker: one that joins
    and then misses all gossip has the model of another one. So was 20180: nobody waited for a device that an
    operator starts after the last fault.
    """
    check(1, 4, 21, 34, 81, 140, 312, 451, 515, 5001, 20180, 20635)


def test_a_model_is_taken_with_the_uploads_in_it() -> None:
    """An edge server used uploads and died; only one that had taken its model meanwhile knew of it."""
    check(101669)


def test_an_edge_server_that_mixes_two_steps_alone_is_not_missing_in_either() -> None:
    """Its coordinator was cut off, and the successor repeats both steps; the log named it as lost."""
    check(103746, 105298)


def test_a_device_that_joins_asks_the_others_when_the_first_edge_server_has_left() -> None:
    """It waited for that one for as long as a round waited for it, and missed the round."""
    check(200705)


def test_an_edge_server_that_comes_back_after_the_end_keeps_its_devices_waiting() -> None:
    """An error of the checker: it was removed while it was down, and nobody tells it or device 1."""
    check(201160)


def test_what_a_killed_process_still_does_reaches_nobody() -> None:
    """An error of the simulated machine: an edge round of the process before was written to the disk."""
    check(103580)


def test_an_edge_server_misses_the_last_gossip_step_only() -> None:
    """Errors of the checker: it took the step before for the last one, and found nothing lost.

    21019: its disk is full and its coordinator killed; 30876: it is killed.
    """
    check(21019, 30876)


def test_an_edge_server_that_is_frozen_while_devices_estimate_has_lost_something() -> None:
    """An error of the checker: it looked at the estimates of those edge servers only that answered."""
    check(310124)


def test_the_same_seed_gives_the_same_history() -> None:
    """In every process; what the nodes draw, and when, comes from the seed alone."""
    assert fingerprint(7) == fingerprint(7) != fingerprint(8)


def fingerprint(seed: int) -> list[tuple[object, ...]]:
    """Every call at an edge server."""
    calls = play(draw_schedule(seed)).calls
    return [(call.at, call.caller, call.process, call.request.method, call.answered_at) for call in calls]


SEEDS = {
    "change-lost": (1, "changes_hold"),
    "leader-not-checked": (43, "commands_of_the_newest_leader"),
    "old-majority": (1, "votes_go_to_those_who_know_the_members"),
    "proposal-ignored": (3, "everybody_ends"),
    "round-counted-twice": (2, "budgets_are_counted_once"),
    "stale-proposal": (3, "everybody_ends"),
    "upload-not-recognised": (0, "models_are_those_of_the_simulator"),
    "use-in-a-model": (101669, "uploads_are_used_once"),
    "use-not-moved": (1, "uploads_are_used_once"),
    "use-unheard": (204, "uploads_are_used_once"),
    "voters-not-compared": (10018, "votes_go_to_those_who_know_the_members"),
    "vote-not-synced": (303, "one_leader_per_term"),
}
"""Of planted bugs, a seed that finds each, and the property that is violated."""


@pytest.mark.parametrize("name", sorted(SEEDS))
def test_a_planted_bug_is_found(name: str) -> None:
    seed, violated = SEEDS[name]
    with plant(name):
        history = play(draw_schedule(seed))
    assert violated in " ".join(find_violations(history))
