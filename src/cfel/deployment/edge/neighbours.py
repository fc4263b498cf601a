"""Models of other edge servers: fetched for a gossip step, and kept until it is over.

Also fetches what others know of devices that have come from them, where a fleet is planned by clusters.

A model that has another size, is not finite or is absurd is not taken. Its sender is then left out of this
gossip step (`coordinator.counting.mixing_rows`), and the others continue without it.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from cfel.deployment.coordinator.state import Position
from cfel.deployment.edge.checks import check_model
from cfel.deployment.health import PeerFaults
from cfel.deployment.host import Compute
from cfel.deployment.payloads import count_difference_bytes, model_size, read_difference, read_model
from cfel.deployment.protocol.calls import Calls, give_up_if
from cfel.deployment.protocol.device_requests import Round
from cfel.deployment.protocol.edge_requests import DeviceEntry, EntriesRequest, PeerModelRequest
from cfel.deployment.protocol.messages import Body
from cfel.deployment.protocol.transfer import PEER_PART_SECONDS, Download, InvalidBodyError, PartSize
from cfel.deployment.security.identity import Identity
from cfel.errors import NotAdmittedError, RejectedError, UnreachableError
from cfel.learning.differences import Differences
from cfel.learning.models.flat import FlatModel

_LOG = logging.getLogger(__name__)
_TRY_AGAIN_SECONDS = 0.1


def merge_rounds(one: Mapping[int, Round], other: Mapping[int, Round]) -> dict[int, Round]:
    """Per device, the later round."""
    return {**one, **{n: max(at, one.get(n, at)) for n, at in other.items()}}


class _Wanted(NamedTuple):
    """A model of another edge server: of a gossip step, or the present one."""

    number: int
    at: Position | None
    public: bool = False  # its public model
    known: str | None = None  # as a difference from this one


class _PeerDownload(Download):
    """A model of another edge server, which is named by the answer to the first request."""

    position: Position = (0, 0, 0)
    last_used_rounds: Mapping[int, Round] = {}


class NeighbourModels:
    """Fetches models.

    Args:
        like: the model before the first round.
        seconds: how long to try for one gossip step.
        faults: where invalid models are noted.
        is_gone: whether an edge server has been silent for too long to wait for it.
        differences: how edge servers send differences; None for whole models.

    Attributes:
        last_used_rounds: per device, the round of its last upload in a model that was fetched, as far as
            senders say so.
    """

    def __init__(
        self,
        calls: Calls,
        like: FlatModel,
        seconds: float,
        faults: PeerFaults,
        compute: Compute,
        is_gone: Callable[[int], bool] = lambda _: False,
        differences: Differences | None = None,
    ) -> None:
        self._compute, self._is_gone = compute, is_gone
        self._calls, self._like, self._seconds, self._faults = calls, like, seconds, faults
        self._term, self._at = 0, (0, 0, 0)
        self._models: dict[int, FlatModel] = {}
        self.last_used_rounds: dict[int, Round] = {}
        self._downloads: dict[_Wanted, _PeerDownload] = {}
        # The public models of others, as they were last heard of; lost with the process.
        self._public: dict[int, FlatModel] = {}
        self._differences, self._difference_bytes = differences, 0
        # Two fetches of one model must not add parts to one download.
        self._fetching: defaultdict[tuple[int, Position | None], asyncio.Lock] = defaultdict(asyncio.Lock)
        self._part_sizes: defaultdict[int, PartSize] = defaultdict(lambda: PartSize(PEER_PART_SECONDS))

    async def fetch(
        self, term: int, at: Position, wanted: Iterable[int], own: FlatModel, *, public: bool = False
    ) -> dict[int, FlatModel]:
        """The models of others at a position, as far as they can be fetched in time and are plausible.

        Within a term positions only increase. A late copy of an earlier command gets nothing, and leaves the
        models of the present step alone; a new coordinator may go back to an earlier step.

        Args:
            term: of the command.
            at: its position.
            wanted: edge servers to ask.
            own: the edge server's own model, which others are compared with.
            public: whether public models are wanted.
        """
        if (term, at) < (self._term, self._at):
            return {}
        if at != self._at:
            self._at, self._models, self._downloads = at, {}, {}
            self._fetching.clear()
        self._term = term
        await asyncio.gather(*(self._fetch_once(_Wanted(number, at, public), own) for number in wanted))
        return dict(self._models) if self._at == at else {}

    def forget(self) -> None:
        """Drops the models."""
        self._models = {}

    async def _fetch_once(self, wanted: _Wanted, own: FlatModel) -> None:
        """Fetches a model, or waits for a copy of the command that does."""
        async with self._fetching[wanted.number, wanted.at]:
            await self._fetch_one(wanted, own)

    async def _fetch_one(self, wanted: _Wanted, own: FlatModel) -> None:
        number, at = wanted.number, wanted.at
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._seconds

        def check_wanted() -> None:
            if self._at != at or clock() > deadline:
                raise UnreachableError("too late for this gossip step")

        while number not in self._models and self._at == at and clock() < deadline:
            try:
                known, content = await self._fetch_content(wanted, check_wanted)
            except NotAdmittedError as error:
                _LOG.warning("no model of edge server %d: %s", number, error)
                return
            except InvalidBodyError as error:
                self._note_invalid(number, error)
                return
            except (UnreachableError, RejectedError) as error:
                _LOG.info("no model of edge server %d yet: %s", number, error)
                if self._is_gone(number):
                    return
                await asyncio.sleep(_TRY_AGAIN_SECONDS)
                continue
            try:
                model = read_model(content, self._like) if known is None else read_difference(content, known)
                await self._compute.run_aside(partial(check_model, model, own))
            except RejectedError as error:
                self._note_invalid(number, error)
                return
            self._faults.clear(number, "model")
            if self._at == at:
                self._models[number] = model
                if wanted.public:
                    self._public[number] = model

    async def _fetch_content(
        self, wanted: _Wanted, check_wanted: Callable[[], None]
    ) -> tuple[FlatModel | None, bytearray]:
        """The bytes of a model; of a difference if they can be had, with what it is a difference from."""
        if wanted.public:
            known = self._public.get(wanted.number, self._like)
            try:
                smaller = wanted._replace(known=known.sha256().hex())
                return known, (await self._download(smaller, check_wanted))[1]
            except RejectedError as error:
                _LOG.info("no difference from edge server %d: %s", wanted.number, error)
        return None, (await self._download(wanted, check_wanted))[1]

    def _note_invalid(self, number: int, error: RejectedError) -> None:
        """Notes a model that is not used; its sender would send the same again, so it is not asked again."""
        self._faults.note(number, "model", f"sent a model that is not used in gossip: {error}")

    async def _download(
        self, wanted: _Wanted, check_wanted: Callable[[], None] = lambda: None
    ) -> tuple[Position, bytearray]:
        """Fetches a model in parts; what has arrived is kept if the connection breaks."""
        number = wanted.number
        download = self._downloads.setdefault(wanted, _PeerDownload("", self._count_bytes(wanted)))
        clock, part_size = asyncio.get_running_loop().time, self._part_sizes[number]

        async def ask(offset: int, most_bytes: int) -> Body:
            check_wanted()
            name = download.sha256 or None
            request = PeerModelRequest(wanted.at, name, offset, most_bytes, wanted.public, wanted.known)
            call = self._calls.call(Identity("edge", number), request, self._seconds)
            answer = await give_up_if(lambda: self._is_gone(number), f"edge-{number} is gone", call)
            if offset == 0:
                download.sha256, download.position = answer.sha256, answer.position
                download.last_used_rounds = answer.last_used_rounds
            return answer.model

        try:
            content = await download.complete(ask, part_size, clock)
        except UnreachableError:
            part_size.shrink()
            raise
        except RejectedError:
            self._downloads.pop(wanted, None)
            raise
        self._downloads.pop(wanted, None)
        self.last_used_rounds = merge_rounds(self.last_used_rounds, download.last_used_rounds)
        return download.position, content

    def _count_bytes(self, wanted: _Wanted) -> int:
        if wanted.known is None or self._differences is None:
            return model_size(self._like)
        if not self._difference_bytes:
            self._difference_bytes = count_difference_bytes(self._differences, self._like)
        return self._difference_bytes

    async def fetch_entries(
        self, came_from: Mapping[int, int], members: Iterable[int]
    ) -> dict[int, Mapping[int, DeviceEntry]]:
        """What edge servers know of devices, by edge server.

        Args:
            came_from: which edge server each device belonged to before.
            members: the others are asked, too, if one of these cannot be reached.
        """
        clock, found = asyncio.get_running_loop().time, dict[int, Mapping[int, DeviceEntry]]()
        request, homes = EntriesRequest(tuple(sorted(came_from))), set(came_from.values())
        deadline = clock() + self._seconds

        async def ask(number: int) -> None:
            try:
                answer = await self._calls.call(Identity("edge", number), request, self._seconds)
            except (UnreachableError, RejectedError) as error:
                _LOG.info("edge server %d does not say what it knows of devices: %s", number, error)
                return
            found[number] = answer.entries

        while missing := [i for i in homes if i not in found and not self._is_gone(i)]:
            await asyncio.gather(*map(ask, missing))
            if clock() > deadline:
                break
            await asyncio.sleep(_TRY_AGAIN_SECONDS if homes - found.keys() else 0)
        if lost := sorted(homes - found.keys()):
            _LOG.warning("devices come without what edge servers %s know of them", lost)
            await asyncio.gather(*(ask(i) for i in members if i not in homes and not self._is_gone(i)))
        return found

    async def fetch_present(self, number: int) -> tuple[Position, FlatModel]:
        """Where an edge server is now, and its model there.

        Raises:
            DeploymentError: it cannot be reached, rejects, has no valid model, or takes too long to send it.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._seconds

        def check_wanted() -> None:
            # Every part has a deadline of its own; just meeting all of them could take hours.
            if clock() > deadline:
                raise UnreachableError(f"its model has not arrived within {self._seconds:g} s")

        async with self._fetching[number, None]:
            position, content = await self._download(_Wanted(number, None), check_wanted)
        model = read_model(content, self._like)
        if not model.is_finite():
            self._faults.note(number, "model", "has a model that is not finite")
            raise RejectedError("its model is not finite")
        return position, model

    async def fetch_all_present(self, numbers: Iterable[int]) -> dict[int, FlatModel]:
        """The models that edge servers have now, of those that answer."""

        async def ask(number: int) -> FlatModel | None:
            try:
                return (await self.fetch_present(number))[1]
            except (UnreachableError, RejectedError) as error:
                _LOG.warning("edge server %d is left out of the mean: %s", number, error)
                return None

        asked = [number for number in numbers if not self._is_gone(number)]
        found = await asyncio.gather(*(ask(number) for number in asked))
        return {i: model for i, model in zip(asked, found, strict=True) if model is not None}

    async def fetch_any_present(self, candidates: Sequence[int], global_round: int) -> FlatModel:
        """The model that one of the candidates has now, if that one has reached a global round.

        One that is behind itself may have used uploads that nobody else knows of.

        Raises:
            RejectedError: none of them can be reached.
        """
        for number in sorted(candidates, key=self._is_gone):
            try:
                at, model = await self.fetch_present(number)
            except (UnreachableError, RejectedError) as error:
                _LOG.warning("cannot catch up from edge server %d: %s", number, error)
                continue
            if at[0] < global_round:
                _LOG.warning("cannot catch up from edge server %d: it is at %s, behind itself", number, at)
                continue
            _LOG.warning("caught up from edge server %d at %s", number, at)
            return model
        raise RejectedError("is out of date, and no neighbour can be reached to catch up from")
