"""Models of other edge servers: fetched for a gossip step, and kept until it is over."""

import asyncio
import logging
from collections.abc import Iterable, Sequence

from cfel.deployment.payloads import model_from
from cfel.deployment.positions import Position, position
from cfel.deployment.security.identity import Identity
from cfel.deployment.transport.grpc_transport import Calls
from cfel.deployment.transport.messages import Message
from cfel.errors import NotAdmittedError, RejectedError, UnreachableError
from cfel.learning.models.flat import FlatModel

_LOG = logging.getLogger(__name__)
_TRY_AGAIN_SECONDS = 0.1


class Neighbours:
    """Fetches models.

    Args:
        calls: how others are reached.
        like: any model of the experiment, for its shape.
        seconds: how long to try for one gossip step.
    """

    def __init__(self, calls: Calls, like: FlatModel, seconds: float) -> None:
        self._calls, self._like, self._seconds = calls, like, seconds
        self._at: Position | None = None
        self._models: dict[int, FlatModel] = {}

    async def fetch(self, at: Position, wanted: Iterable[int]) -> dict[int, FlatModel]:
        """The models of others at a position, as far as they can be had in time."""
        if self._at != at:
            self._at, self._models = at, {}
        await asyncio.gather(*(self._fetch_one(at, number) for number in wanted))
        return dict(self._models) if self._at == at else {}

    def forget(self) -> None:
        """Lets the models go."""
        self._models = {}

    async def _fetch_one(self, at: Position, number: int) -> None:
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._seconds
        while number not in self._models and self._at == at and clock() < deadline:
            try:
                request = Message({"at": at})
                answer = await self._calls.call(
                    Identity("edge", number), "peer_model", request, self._seconds
                )
            except NotAdmittedError as error:
                _LOG.warning("no model of edge server %d: %s", number, error)
                return
            except (UnreachableError, RejectedError) as error:
                _LOG.info("no model of edge server %d yet: %s", number, error)
                await asyncio.sleep(_TRY_AGAIN_SECONDS)
                continue
            if self._at == at:
                self._models[number] = model_from(answer.body, self._like)

    async def present(self, number: int) -> tuple[Position, FlatModel]:
        """Where an edge server is now, and its model there.

        Raises:
            DeploymentError: it cannot be reached, or refuses.
        """
        to = Identity("edge", number)
        answer = await self._calls.call(to, "peer_model", Message(), self._seconds)
        return position(answer.header["position"]), model_from(answer.body, self._like)

    async def present_models(self, numbers: Iterable[int]) -> dict[int, FlatModel]:
        """The models that edge servers have now, of those that answer."""

        async def ask(number: int) -> FlatModel | None:
            try:
                return (await self.present(number))[1]
            except (UnreachableError, RejectedError) as error:
                _LOG.warning("edge server %d is left out of the mean: %s", number, error)
                return None

        asked = list(numbers)
        found = await asyncio.gather(*(ask(number) for number in asked))
        return {i: model for i, model in zip(asked, found, strict=True) if model is not None}

    async def present_model(self, candidates: Sequence[int]) -> FlatModel:
        """The model that one of the candidates has now.

        Raises:
            RejectedError: none of them can be reached.
        """
        for number in candidates:
            try:
                at, model = await self.present(number)
            except (UnreachableError, RejectedError) as error:
                _LOG.warning("cannot catch up from edge server %d: %s", number, error)
                continue
            _LOG.warning("caught up from edge server %d at %s", number, at)
            return model
        raise RejectedError("is out of date, and no neighbour can be reached to catch up from")
