"""How long an edge server waits for its coordinator, and whose complaints it believes."""

from cfel.deployment.health.leader_watch import Complaints, LeaderWatch
from tests.support.clock import Clock


class Waiting:
    """An edge server that waits for a coordinator: at least 10 s, at most 100 s."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.watch = LeaderWatch(10.0, 100.0, self.clock)
        self.step = 0

    def is_too_long(
        self, seconds: float, leader: object = (2, 7), *, idle: bool = True, work: bool = False
    ) -> bool:
        """Whether it is too long after so many more seconds."""
        self.clock.seconds += seconds
        return self.watch.is_too_long(self.step, leader, is_idle=idle, others_work=work)

    def take_steps(self, seconds: float, steps: int) -> None:
        """Gets on."""
        for _ in range(steps):
            self.step += 1
            assert not self.is_too_long(seconds)
        self.step += 1
        assert not self.is_too_long(0.0)


def test_a_wait_is_too_long_by_what_steps_took_before() -> None:
    waiting = Waiting()
    waiting.take_steps(4.0, 6)
    assert not waiting.is_too_long(19.9)
    assert waiting.is_too_long(0.2)
    # The next coordinator gets twice the time, and after a step all is as before.
    assert not waiting.is_too_long(0.0, (1, 8))
    assert not waiting.is_too_long(39.9, (1, 8))
    assert waiting.is_too_long(0.2, (1, 8))
    waiting.take_steps(4.0, 1)
    assert waiting.is_too_long(20.1)


def test_the_bounds_hold_whatever_steps_took() -> None:
    quick, slow, unknown = Waiting(), Waiting(), Waiting()
    quick.take_steps(0.01, 6)
    slow.take_steps(90.0, 6)
    assert not quick.is_too_long(9.9)
    assert quick.is_too_long(0.2)
    for waiting in (slow, unknown):
        assert not waiting.is_too_long(0.0)
        assert not waiting.is_too_long(99.9)
        assert waiting.is_too_long(0.2)


def test_nobody_is_blamed_for_own_work_for_the_work_of_others_or_without_a_leader() -> None:
    waiting = Waiting()
    waiting.take_steps(1.0, 6)
    assert not waiting.is_too_long(500.0, idle=False)
    assert not waiting.is_too_long(9.9)
    assert not waiting.is_too_long(500.0, None)
    assert not waiting.is_too_long(0.0)
    assert not waiting.is_too_long(99.0, work=True)
    assert waiting.is_too_long(2.0, work=True)


def test_two_complaints_are_believed_and_one_from_time_to_time() -> None:
    clock = Clock()
    complaints = Complaints(0.7, clock)
    assert not complaints.are_believed([])
    assert complaints.are_believed([3])
    clock.seconds = 69.0
    assert not complaints.are_believed([3])
    assert complaints.are_believed([1])
    assert complaints.are_believed([1, 3])
    clock.seconds = 71.0
    assert complaints.are_believed([3])
