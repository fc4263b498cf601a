"""A Flower grid in this process: every node runs the same ClientApp, one after another.

For trials and tests of a ServerApp's strategy without SuperLink, SuperNodes or Ray. Messages are handed over
as objects, so nothing is serialised that Flower does not serialise anyway (its arrays are bytes).
"""

from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from cfel.errors import InputError
from cfel.flower.records import identify_process, open_context


class LocalGrid(Grid):  # type: ignore[misc]
    """Nodes 1 … n of this process, of which node i has partition i − 1.

    An exception in a client is raised here, with its traceback. With Flower's own grids it becomes a reply
    with an error.

    Args:
        app: what every node runs.
        nodes: how many there are.
        run_config: for their contexts.
    """

    def __init__(self, app: ClientApp, nodes: int, run_config: Mapping[str, Any] | None = None) -> None:
        identify_process()
        self._app = app
        self._contexts: dict[int, Context] = {
            place + 1: open_context(place + 1, place, nodes, run_config or {}) for place in range(nodes)
        }
        self._replies: dict[str, Message] = {}
        self._sent = 0

    def set_run(self, run: Any) -> None:  # noqa: ANN401 — Flower's Run
        """There is one run only."""

    @property
    def run(self) -> Any:  # noqa: ANN401 — Flower's Run
        """There is no description of the run."""
        raise InputError("LocalGrid: a run without SuperLink has no description")

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """A new message, as in Flower."""
        return Message(content, dst_node_id, message_type, group_id=group_id, ttl=ttl)

    def get_node_ids(self) -> Iterable[int]:
        """The nodes."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Runs the clients; their replies can then be pulled."""
        names = []
        for message in messages:
            node = message.metadata.dst_node_id
            if node not in self._contexts:
                raise InputError(f"LocalGrid: there is no node {node}, only 1 to {len(self._contexts)}")
            self._sent += 1
            names.append(str(self._sent))
            self._replies[names[-1]] = self._app(message, self._contexts[node])
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies to these messages, each once."""
        return [self._replies.pop(name) for name in message_ids if name in self._replies]

    def send_and_receive(
        self,
        messages: Iterable[Message],
        *,
        timeout: float | None = None,  # noqa: ARG002 — all replies are there at once
    ) -> Iterable[Message]:
        """Runs the clients and returns their replies."""
        return self.pull_messages(self.push_messages(messages))
