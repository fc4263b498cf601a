"""Two processes of one edge server are told from one that restarts."""

from cfel.deployment.health.instances import InstanceWatch
from tests.support.clock import Clock


def watch_instances(clock: Clock, names: str) -> InstanceWatch:
    """Instances that spoke for edge server 1, one a second; "-" for one that says nothing."""
    watch = InstanceWatch(clock)
    for name in names:
        watch.note(1, name.replace("-", ""))
        clock.seconds += 1.0
    return watch


def test_restarts_are_not_taken_for_a_second_process() -> None:
    assert watch_instances(Clock(), "aaabbbccc-cd--ddefghijklmnop").find_doubled() == []


def test_instances_that_come_back_are_two_processes_for_a_minute() -> None:
    """In "abaab" a and b come back: two returns are not enough, the third is."""
    clock = Clock()
    assert not watch_instances(clock, "abaab").is_doubled(1)
    watch = watch_instances(clock, "abaaba")
    assert watch.find_doubled() == [1]
    assert not watch.is_doubled(0)
    clock.seconds += 60.0
    assert watch.find_doubled() == []


def test_an_endless_supply_of_instances_takes_no_memory() -> None:
    watch = InstanceWatch(Clock())
    for number in range(1000):
        watch.note(1, str(number))
    watch.note(1, "0")
    assert not watch.is_doubled(1)
    assert len(watch._seen[1]) < 10
