"""Times the local steps of an experiment's device on this machine, and counts their joules and operations.

A step is the one that a device of a federation takes: the same function, one torch thread. It is measured for
a given time; only a single step that takes longer exceeds it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch.utils.flop_counter import FlopCounterMode

from cfel.deployment.measurement.energy_counters import EnergyCounter
from cfel.learning.device_messages import DeviceOrder, DeviceState
from cfel.learning.local.workspace import Workspace
from cfel.learning.roles import device_update
from cfel.learning.worker_threads import prepare_thread
from cfel.world import World


@dataclass(frozen=True, slots=True)
class StepMeasurement:
    """What local steps took.

    Attributes:
        steps: how many were measured.
        seconds: of all of them.
        joules: of all of them, by the host's counters; None if one of them could not be read.
        flops_per_sample: operations of one sample in one step, as torch counts them; 0 if it cannot.
    """

    steps: int
    seconds: float
    joules: float | None
    flops_per_sample: float


def measure_steps(
    world: World,
    seconds: float,
    now: Callable[[], float],
    counters: Sequence[EnergyCounter] = (),
    device: str = "cpu",
) -> StepMeasurement:
    """Measures local steps of the experiment's device with the most samples.

    Args:
        world: what is learned, and how.
        seconds: how long to measure.
        now: a monotonic clock.
        counters: of this host, all of which are added.
        device: torch's device.
    """
    prepare_thread()
    workspace = Workspace(world.task, world.training, world.compress, device)
    # The first step of an order also makes estimates, so a step is what a second one adds.
    flops = _count_flops(world, workspace, 2) - _count_flops(world, workspace, 1)
    batch = min(world.training.batch, world.data[_find_device(world)].samples)
    # Caches are warm by now; one step is timed, to know how many fit into the time.
    before = now()
    _take_steps(world, workspace, 1)
    pace = max(now() - before, 1e-9)
    begin = now()
    _read_joules(counters, begin)
    steps = 0
    while steps == 0 or (now() - begin) + pace < seconds:
        many = min(world.setting.rounds.local_steps, max(1, int((seconds - (now() - begin)) / pace)))
        _take_steps(world, workspace, many)
        steps += many
    end = now()
    return StepMeasurement(steps, end - begin, _read_joules(counters, end), flops / batch)


def _count_flops(world: World, workspace: Workspace, steps: int) -> int:
    with FlopCounterMode(display=False) as counter:
        _take_steps(world, workspace, steps)
    return int(counter.get_total_flops())


def _take_steps(world: World, workspace: Workspace, steps: int) -> None:
    device = _find_device(world)
    order = DeviceOrder(
        seed=world.setting.seed,
        global_round=0,
        edge_round=0,
        device=device,
        rho=1.0,
        theta=1.0,
        tau=steps,
        model=world.start,
    )
    device_update(order, world.data[device], DeviceState(), workspace)


def _find_device(world: World) -> int:
    """The device with the most samples, whose batches are full if any are."""
    return max(range(len(world.data)), key=lambda device: world.data[device].samples)


def _read_joules(counters: Sequence[EnergyCounter], now: float) -> float | None:
    """Joules of all counters since the last call; None without counters, or if one cannot be read."""
    readings = [counter.joules(now) for counter in counters]
    known = [joules for joules in readings if joules is not None]
    return sum(known) if known and len(known) == len(readings) else None
