"""Models of other edge servers: fetched for a gossip step, and kept until it is over.

A model that has another size, is not finite or is absurd is not taken. Its sender is then left out of this
gossip step (`coordinator.partial_mixing`), and the others go on without it.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence

from cfel.deployment.edge.peer_faults import PeerFaults
from cfel.deployment.payloads import read_model
from cfel.deployment.plausible_models import check_model
from cfel.deployment.positions import Position
from cfel.deployment.protocol.calls import Calls
from cfel.deployment.protocol.peer_requests import PeerModelRequest
from cfel.deployment.security.identity import Identity
from cfel.errors import NotAdmittedError, RejectedError, UnreachableError
from cfel.learning.models.flat import FlatModel

_LOG = logging.getLogger(__name__)
_TRY_AGAIN_SECONDS = 0.1


class NeighbourModels:
    """Fetches models.

    Args:
        calls: how others are reached.
        like: any model of the experiment, for its shape.
        seconds: how long to try for one gossip step.
        faults: where invalid models are noted.
    """

    def __init__(self, calls: Calls, like: FlatModel, seconds: float, faults: PeerFaults) -> None:
        self._calls, self._like, self._seconds, self._faults = calls, like, seconds, faults
        self._term, self._at = 0, (0, 0, 0)
        self._models: dict[int, FlatModel] = {}

    async def fetch(
        self, term: int, at: Position, wanted: Iterable[int], own: FlatModel
    ) -> dict[int, FlatModel]:
        """The models of others at a position, as far as they can be fetched in time and are plausible.

        Within a term positions only increase. A late copy of an earlier command gets nothing, and leaves the
        models of the present step alone; a new coordinator may go back to an earlier step.

        Args:
            term: of the command.
            at: its position.
            wanted: edge servers to ask.
            own: the edge server's own model, which others are compared with.
        """
        if (term, at) < (self._term, self._at):
            return {}
        if at != self._at:
            self._at, self._models = at, {}
        self._term = term
        await asyncio.gather(*(self._fetch_one(at, number, own) for number in wanted))
        return dict(self._models) if self._at == at else {}

    def forget(self) -> None:
        """Drops the models."""
        self._models = {}

    async def _fetch_one(self, at: Position, number: int, own: FlatModel) -> None:
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._seconds
        while number not in self._models and self._at == at and clock() < deadline:
            try:
                request = PeerModelRequest(at)
                answer = await self._calls.call(Identity("edge", number), request, self._seconds)
            except NotAdmittedError as error:
                _LOG.warning("no model of edge server %d: %s", number, error)
                return
            except (UnreachableError, RejectedError) as error:
                _LOG.info("no model of edge server %d yet: %s", number, error)
                await asyncio.sleep(_TRY_AGAIN_SECONDS)
                continue
            try:
                model = read_model(answer.model.join(), self._like)
                await asyncio.to_thread(check_model, model, own)
            except RejectedError as error:
                # It would send the same again.
                self._faults.note(number, "model", f"sent a model that is not used in gossip: {error}")
                return
            self._faults.clear(number, "model")
            if self._at == at:
                self._models[number] = model

    async def fetch_present(self, number: int) -> tuple[Position, FlatModel]:
        """Where an edge server is now, and its model there.

        Raises:
            DeploymentError: it cannot be reached, rejects, or has no valid model.
        """
        answer = await self._calls.call(Identity("edge", number), PeerModelRequest(), self._seconds)
        model = read_model(answer.model.join(), self._like)
        if not model.is_finite():
            self._faults.note(number, "model", "has a model that is not finite")
            raise RejectedError("its model is not finite")
        return answer.position, model

    async def fetch_all_present(self, numbers: Iterable[int]) -> dict[int, FlatModel]:
        """The models that edge servers have now, of those that answer."""

        async def ask(number: int) -> FlatModel | None:
            try:
                return (await self.fetch_present(number))[1]
            except (UnreachableError, RejectedError) as error:
                _LOG.warning("edge server %d is left out of the mean: %s", number, error)
                return None

        asked = list(numbers)
        found = await asyncio.gather(*(ask(number) for number in asked))
        return {i: model for i, model in zip(asked, found, strict=True) if model is not None}

    async def fetch_any_present(self, candidates: Sequence[int]) -> FlatModel:
        """The model that one of the candidates has now.

        Raises:
            RejectedError: none of them can be reached.
        """
        for number in candidates:
            try:
                at, model = await self.fetch_present(number)
            except (UnreachableError, RejectedError) as error:
                _LOG.warning("cannot catch up from edge server %d: %s", number, error)
                continue
            _LOG.warning("caught up from edge server %d at %s", number, at)
            return model
        raise RejectedError("is out of date, and no neighbour can be reached to catch up from")
