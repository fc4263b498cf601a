"""Whether a coordinator's state fits the experiment: positions, numbers of devices, lengths and ranges.

The codec has checked types. What is checked here is what the next coordinator would stumble over; whether the
values are true is not known to anybody but the coordinator that made them.
"""

from collections.abc import Sequence

from cfel import validation
from cfel.control.scheme import RoundPlan
from cfel.deployment.coordinator.control_state import CoordinatorState, FinishedEdgeRound
from cfel.deployment.measurement.measured_rounds import EdgeRoundMeasurements, FederationMeasurements
from cfel.deployment.positions import Position, gossip_steps
from cfel.errors import InputError, RejectedError
from cfel.learning.local.estimates import Estimates, check_loss
from cfel.system.backhaul import check_gossip_step
from cfel.world import World

MixingRows = Sequence[Sequence[float]]

LEAST_SPEED = 1e-6
"""No clock runs slower, as a share of its full speed; keeps quotients finite."""


def check_position(world: World, at: Position) -> None:
    """Checks that a run has such a position.

    Raises:
        RejectedError: it has not.
    """
    rounds = world.setting.rounds
    beyond = at[0] > rounds.global_rounds or at[1] > rounds.edge_rounds
    if beyond or min(at) < 0 or at[2] > gossip_steps(world, at[1]):
        raise RejectedError(f"position = {at}: the run has no such position")


def check_rows(world: World, rows: MixingRows) -> None:
    """Checks that a mixing matrix is a gossip step on this backhaul.

    Raises:
        RejectedError: it is none.
    """
    clusters, backhaul = world.setting.fleet.clusters, world.setting.backhaul
    if len(rows) != clusters or any(len(row) != clusters for row in rows):
        raise RejectedError(f"rows: must be {clusters} rows of {clusters} weights")
    everybody = world.setting.scheme.gossip.reach == "everybody"
    # The whole matrix, not only one edge server's row: one row alone cannot show that the step keeps the mean
    # of all models.
    try:
        check_gossip_step(rows, backhaul.target, None if everybody else backhaul.graph)
    except InputError as error:
        raise RejectedError(f"rows: {error}") from error


def check_state(world: World, state: CoordinatorState) -> None:
    """Checks a state that came from another node.

    Raises:
        RejectedError: it does not fit the experiment.
    """
    check_position(world, state.position)
    try:
        _check_numbers(world, state)
    except InputError as error:
        raise RejectedError(f"state.{error}") from error


def _check_numbers(world: World, state: CoordinatorState) -> None:
    fleet, control = world.setting.fleet, state.control
    for ledger in (control.expected, control.realised):
        _check_length("ledger", ledger.elapsed_seconds, fleet.clusters)
    validation.check_floats("spent_joules", control.spent_joules, length=fleet.devices, least=0)
    if control.losses is not None:
        _check_length("losses", control.losses.tolist(), fleet.devices)
    if control.habits is not None:
        validation.check_floats("habits", control.habits, length=fleet.devices)
    _check_length("estimates", state.estimates, fleet.devices)
    for estimates in state.estimates:
        check_kept_energy(estimates, len(world.training.local.kept_energy_at))
    for device in state.absent_devices:
        validation.check_whole("absent_devices", device, least=0, most=fleet.devices - 1)
    _check_length("digests", state.digests, fleet.clusters)
    for digest in state.digests:
        if len(digest) != 64 or set(digest) - set("0123456789abcdef"):
            raise InputError(f"digests: {digest!r} is no SHA-256")
    # Not their values: a user's metric may be NaN or infinite.
    if len(state.metrics) != fleet.clusters:
        raise InputError(f"metrics: {len(state.metrics)} entries, {fleet.clusters} expected")
    validation.check_number("started_at", state.started_at)
    validation.check_number("rate", state.rate, least=0, most=1)
    if len(state.finished) > world.setting.rounds.edge_rounds:
        raise InputError(f"finished: {len(state.finished)} edge rounds")
    for finished in state.finished:
        _check_finished(world, finished)
    if state.plan is not None:
        _check_plan(state.plan, fleet.devices)
    if state.plan is not None or state.available:
        _check_length("available", state.available, fleet.devices)
    if state.measured is not None:
        _check_measured(state.measured, fleet.devices)


def check_kept_energy(estimates: Estimates | None, entries: int) -> None:
    """Checks the shares of energy that came with estimates; there may be none.

    Raises:
        InputError: there is another number of them than devices are asked for, or one is not from 0 to 1.
    """
    if estimates is not None and estimates.kept_energy:
        validation.check_floats("kept_energy", estimates.kept_energy, length=entries, least=0, most=1)


def _check_finished(world: World, finished: FinishedEdgeRound) -> None:
    fleet, rounds = world.setting.fleet, world.setting.rounds
    validation.check_whole("finished.edge_round", finished.edge_round, least=0, most=rounds.edge_rounds - 1)
    _check_length("finished.available", finished.available, fleet.devices)
    _check_plan(finished.plan, fleet.devices)
    for work in finished.work:
        validation.check_whole("finished.work.device", work.device, least=0, most=fleet.devices - 1)
        validation.check_whole("finished.work.steps", work.steps, least=0, most=rounds.local_steps)
        validation.check_whole("finished.work.wire_bits", work.wire_bits, least=0)
        check_loss(work.loss, work.steps)
    if finished.measurements is not None:
        _check_edge_round(finished.measurements, fleet.clusters, fleet.devices)


def _check_edge_round(measurements: EdgeRoundMeasurements, clusters: int, devices: int) -> None:
    validation.check_number("measurements.seconds", measurements.seconds, least=0)
    validation.check_floats(
        "measurements.cluster_seconds", measurements.cluster_seconds, length=clusters, least=0
    )
    _check_length("measurements.devices", measurements.devices, devices)


def _check_measured(measured: FederationMeasurements, devices: int) -> None:
    _check_length("measured.devices", measured.devices, devices)
    if measured.accounts:
        _check_length("measured.accounts", measured.accounts, devices)
    for account in measured.accounts:
        validation.check_floats("measured.accounts", (account.charged, account.usual), least=0)
    for ratio in (measured.overhead, measured.exchange):
        validation.check_floats("measured", (ratio.amount, ratio.units), least=0)
        if ratio.amount and not ratio.units:
            raise InputError("measured: an amount without units")


def _check_plan(plan: RoundPlan, devices: int) -> None:
    for name in ("rho", "theta"):
        validation.check_floats(f"plan.{name}", getattr(plan, name), length=devices, least=0, most=1)
    if plan.speed is not None:
        validation.check_floats("plan.speed", plan.speed, length=devices, least=LEAST_SPEED, most=1)
    if plan.weight is not None:
        validation.check_floats("plan.weight", plan.weight, length=devices, above=0)


def _check_length(name: str, values: Sequence[object], length: int) -> None:
    if len(values) != length:
        raise InputError(f"{name}: {len(values)} entries, {length} expected")
