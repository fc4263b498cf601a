"""The experiment file's `[deployment]`: deadlines, limits and emulation of a federation.

Addresses, certificates and directories are in each node's own file (`launch.node_file`).
"""

from dataclasses import dataclass

from cfel import validation
from cfel.errors import InputError, unknown_name

CHUNK_BYTES = 1024 * 1024
"""Bodies travel in pieces of this size, so that memory stays flat and a slow peer slows nobody else."""

CONDITIONS = ("model", "measured")
FAIL_OVERS = ("stay", "return", "never")


@dataclass(frozen=True, slots=True)
class DeploymentParameters:
    """How a deployment is carried out.

    Attributes:
        conditions: where μ, α, ν and p come from: the experiment's "model", or "measured" on the devices;
            with the latter, budgets count real seconds.
        join_seconds: how long the first round waits for devices that have not joined yet.
        round_seconds: an edge server closes an edge round after this long, with what has arrived; sooner if
            the missing devices take much longer than they used to.
        gone_seconds: nobody waits for a device that has been disconnected for this long, or for an edge
            server that has been silent for it.
        fail_over: what devices do whose edge server has been silent for `gone_seconds`: they "stay" with
            another one that takes them over, "return" when theirs is back, or "never" leave it. One that
            was started and finds its own silent asks them after 5 s, as that one may have left the fleet.
        gossip_seconds: an edge server that misses a gossip step by this much is left out of it.
        election_seconds: silence after which the coordinator counts as dead; other waits follow it. Raise it
            where processes far outnumber cores.
        time_scale: real seconds per virtual second that devices take, to emulate the fleet; 0 for no waiting.
        report_spread: how far a device's measurements may be from what the experiment's model and the other
            devices suggest, as a factor; beyond, they are replaced by the bound.
        clip_norm: an update of larger Euclidean norm is scaled down to it; None for no limit.
        quarantine_after: rejected uploads after which a device is quarantined; 0 for never.
        linger_seconds: a finished edge server waits this long for one that missed the end.
        give_up_seconds: a device ends with exit code 4 when its edge server has been silent for this long; 0
            for never.
        publish_every: nodes publish the model after every so many global rounds, and the last one; 0 for the
            last one only.
        published_models: how many published models a node keeps, at least 2: the newest, and those that
            `cfel rollback` can return to.
        kept_plans: of how many global rounds an edge server keeps the plan tables; 0 for all.
        host: address that `cfel up` lets edge servers listen on.
        certificate_hours: lifetime of the certificates that `cfel up` makes.
        receive_seconds: time in which a request must arrive, without its body.
        least_bytes_per_second: slowest rate at which a body may arrive.
        keepalive_seconds: silence on a connection after which the other side is asked for a sign of life.
        keepalive_timeout_seconds: silence after that which ends the connection.
        calls_per_second: calls that one device or operator may make to an edge server, and a tenth of what
            another edge server may; twice as many at once.
        bytes_in_flight: bytes that one node may be sending to an edge server, or leave unread; a single body
            may be larger.
    """

    conditions: str = "model"
    join_seconds: float = 120.0
    round_seconds: float = 120.0
    gone_seconds: float = 10.0
    fail_over: str = "stay"
    gossip_seconds: float = 30.0
    election_seconds: float = 0.7
    time_scale: float = 0.0
    report_spread: float = 4.0
    clip_norm: float | None = None
    quarantine_after: int = 10
    linger_seconds: float = 60.0
    give_up_seconds: float = 3600.0
    publish_every: int = 10
    published_models: int = 3
    kept_plans: int = 1000
    host: str = "127.0.0.1"
    certificate_hours: float = 72.0
    receive_seconds: float = 60.0
    least_bytes_per_second: float = 10_000.0
    keepalive_seconds: float = 10.0
    keepalive_timeout_seconds: float = 20.0
    calls_per_second: float = 50.0
    bytes_in_flight: int = 256 * 1024 * 1024

    def __post_init__(self) -> None:
        if self.conditions not in CONDITIONS:
            raise InputError(unknown_name("deployment.conditions", self.conditions, CONDITIONS))
        if self.fail_over not in FAIL_OVERS:
            raise InputError(unknown_name("deployment.fail_over", self.fail_over, FAIL_OVERS))
        waits = ("join_seconds", "round_seconds", "gossip_seconds", "election_seconds", "certificate_hours")
        rates = ("receive_seconds", "least_bytes_per_second", "calls_per_second")
        connections = ("keepalive_seconds", "keepalive_timeout_seconds")
        for name in (*waits, *rates, *connections):
            validation.check_number(f"deployment.{name}", getattr(self, name), above=0)
        for name in ("time_scale", "gone_seconds", "linger_seconds", "give_up_seconds"):
            validation.check_number(f"deployment.{name}", getattr(self, name), least=0)
        validation.check_number("deployment.report_spread", self.report_spread, least=1)
        if self.clip_norm is not None:
            validation.check_number("deployment.clip_norm", self.clip_norm, above=0)
        validation.check_whole("deployment.quarantine_after", self.quarantine_after, least=0)
        validation.check_whole("deployment.bytes_in_flight", self.bytes_in_flight, least=1)
        validation.check_whole("deployment.publish_every", self.publish_every, least=0)
        validation.check_whole("deployment.published_models", self.published_models, least=2)
        validation.check_whole("deployment.kept_plans", self.kept_plans, least=0)
        if not isinstance(self.host, str) or not self.host:
            raise InputError(f"deployment.host = {self.host!r}: must be an address")

    def publishes(self, rounds_done: int) -> bool:
        """Whether the model after so many global rounds is published, if it is not the last one."""
        return self.publish_every > 0 and rounds_done > 0 and rounds_done % self.publish_every == 0

    def transfer_seconds(self, body_bytes: int) -> float:
        """How long a call with a body of this size may take."""
        return self.receive_seconds + body_bytes / self.least_bytes_per_second

    @property
    def measures(self) -> bool:
        """Whether conditions are measured."""
        return self.conditions == "measured"
