"""What other edge servers answer, compared with the experiment before it is used.

The codec has checked types and ranges. An edge server speaks for its own devices only; an answer that does
not fit is not used, and its sender is left out as if it had rejected the call.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cfel import validation
from cfel.deployment.coordinator.check_state import (
    LEAST_SPEED,
    check_kept_energy,
    check_position,
    check_rows,
    check_state,
)
from cfel.deployment.payloads import most_upload_bytes
from cfel.deployment.protocol.calls import Answer, Calls, Request
from cfel.deployment.protocol.coordinator_requests import (
    CloseCommand,
    DeviceResult,
    EstimateAnswer,
    FetchAnswer,
    MixAnswer,
    ModelScores,
    NewestAnswer,
    PlanAnswer,
)
from cfel.deployment.protocol.peer_requests import HelloAnswer, PeerModelAnswer, RecordsAnswer
from cfel.deployment.security.identity import Identity
from cfel.errors import InputError, InvalidAnswerError, RejectedError
from cfel.learning.local.estimates import check_loss
from cfel.rounds.kernel import is_over
from cfel.wording import show
from cfel.world import World

OnRejection = Callable[[Identity, str, str], None]
"""Called with the sender of an answer that is not used, the method and the reason."""


@dataclass(frozen=True, slots=True)
class CheckedCalls:
    """Calls to edge servers whose answers fit the experiment.

    Attributes:
        calls: how they are reached.
        world: what is run.
        on_rejection: called for answers that do not fit.
    """

    calls: Calls
    world: World
    on_rejection: OnRejection

    async def call(self, to: Identity, request: Request[Answer], seconds: float) -> Answer:
        """See `Calls`.

        Raises:
            InvalidAnswerError: the answer is none, or does not fit.
        """
        try:
            answer = await self.calls.call(to, request, seconds)
        except InvalidAnswerError as error:
            raise self._reject(to, request.method, error) from error
        try:
            check_answer(self.world, to.number, answer)
        except (InputError, RejectedError) as error:
            raise self._reject(to, request.method, error) from error
        return answer

    def _reject(self, sender: Identity, method: str, error: Exception) -> InvalidAnswerError:
        self.on_rejection(sender, method, str(error))
        return InvalidAnswerError(f"{sender} answers {method} with {error}")


def check_answer(world: World, edge: int, answer: object) -> None:
    """Checks an answer of an edge server.

    Raises:
        InputError: it does not fit the experiment.
        RejectedError: the coordinator's state in it does not.
    """
    match answer:
        case HelloAnswer():
            _check_devices(world, edge, answer.devices)
        case PeerModelAnswer():
            check_position(world, answer.position)
        case RecordsAnswer():
            _check_records(world, [each.round for each in answer.records])
        case NewestAnswer():
            _check_devices(world, edge, answer.connected)
            if answer.state is not None:
                check_state(world, answer.state)
            if answer.proposal is not None:
                _check_records(world, [answer.proposal.record.round])
        case EstimateAnswer():
            _check_devices(world, edge, [*(each.device for each in answer.devices), *answer.diverged])
            for each in answer.devices:
                check_kept_energy(each.estimates, 0)
        case PlanAnswer():
            _check_devices(world, edge, answer.connected)
            _check_devices(world, edge, [*(each.device for each in answer.devices), *answer.diverged])
            for result in answer.devices:
                _check_result(world, result)
        case FetchAnswer():
            _check_fetched(world, answer)
        case MixAnswer():
            _check_scores(world, answer, int(world.setting.fleet.sizes[edge]))
        case ModelScores():
            _check_scores(world, answer, world.setting.fleet.devices)


def check_closing(world: World, command: CloseCommand) -> None:
    """Checks the record and the plans that a command brings.

    Raises:
        RejectedError: they are not of the round that ends, or of devices that do not exist.
    """
    fleet, rounds, plans = world.setting.fleet, world.setting.rounds, command.plans
    if not command.record.round == plans.round == command.position[0] + 1:
        raise RejectedError(f"record of round {command.record.round} at {command.position}")
    if command.last != is_over(rounds, world.setting.budget, world.setting.metrics[0], command.record):
        raise RejectedError(f"last = {command.last}: does not follow from the record")
    rows = len(plans.device)
    devices, edge_rounds = set(plans.device.tolist()), set(plans.edge_round.tolist())
    known = devices <= set(range(fleet.devices)) and edge_rounds <= set(range(rounds.edge_rounds))
    if not known or rows > fleet.devices * rounds.edge_rounds:
        raise RejectedError("plans: of devices or edge rounds that do not exist")


def _check_records(world: World, rounds: Sequence[int]) -> None:
    if rounds and (list(rounds) != list(range(rounds[0], rounds[0] + len(rounds))) or rounds[0] < 1):
        raise InputError(f"records of rounds {rounds}: must follow each other")
    if len(rounds) and rounds[-1] > world.setting.rounds.global_rounds:
        raise InputError(f"record of round {rounds[-1]}: there is no such round")


def _check_devices(world: World, edge: int, devices: Iterable[int]) -> None:
    """Raises unless these are different devices of the edge server."""
    seen: set[int] = set()
    fleet = world.setting.fleet
    for device in devices:
        if device >= fleet.devices or fleet.cluster[device] != edge or device in seen:
            raise InputError(f"device {device}: is none of its own, or there twice")
        seen.add(device)


def _check_fetched(world: World, answer: FetchAnswer) -> None:
    setting = world.setting
    for number in answer.received_from:
        validation.check_whole("received_from", number, least=0, most=setting.fleet.clusters - 1)
    if answer.rows is not None:
        check_rows(world, answer.rows)


def _check_scores(world: World, scores: MixAnswer | ModelScores, devices: int) -> None:
    """Raises unless all further metrics are there, and all devices, or none.

    Any number counts: a user's metric may be NaN or infinite, and the simulator records it.
    """
    if scores.metrics and scores.metrics.keys() != world.task.metrics.keys():
        raise InputError(f"metrics: {show(sorted(scores.metrics))} are not the task's")
    if len(scores.device_metrics) not in (0, devices):
        raise InputError(f"device_metrics: {len(scores.device_metrics)} entries, {devices} expected")


def _check_result(world: World, result: DeviceResult) -> None:
    most_bits = 8 * most_upload_bytes(world.start)
    validation.check_whole("steps", result.steps, least=0, most=world.setting.rounds.local_steps)
    validation.check_whole("wire_bits", result.wire_bits, least=0, most=most_bits)
    validation.check_number("speed", result.speed, least=LEAST_SPEED)
    check_loss(result.loss, result.steps)
    check_kept_energy(result.estimates, len(world.training.local.kept_energy_at))
