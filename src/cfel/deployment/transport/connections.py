"""How gRPC keeps connections: keep-alive, reconnecting, and what a server puts up with.

Misspelt names of options are ignored silently by gRPC, so all of them are here and tested by what they do.
"""

import sys
from dataclasses import dataclass

from cfel.deployment.parameters import DeploymentParameters
from cfel.deployment.security.limits import MOST_OPEN_CALLS

if sys.platform != "win32":
    import resource

Options = tuple[tuple[str, int], ...]

# A TLS handshake over a slow link shares it with a transfer; between edge servers it is quick.
DEVICE_CONNECT_SECONDS = 15.0
EDGE_CONNECT_SECONDS = 5.0
# An edge server whose control connection does not answer for this many election timeouts is not a member
# that could vote in time, so the connection is opened again.
_ELECTION_TIMEOUTS = 1.5
# The dashboard takes up to an eighth, the rest is for files and the node's own calls.
_SHARE_OF_FILES = 0.75
_MOST_CONNECTIONS = 1_000_000
# Nobody here compresses messages; a few bytes would become megabytes before they are looked at.
_UNCOMPRESSED: Options = (("grpc.per_message_decompression", 0),)


@dataclass(frozen=True, slots=True)
class ConnectionParameters:
    """How long a connection may be silent.

    Attributes:
        keepalive_seconds: silence after which the other side is asked for a sign of life.
        keepalive_timeout_seconds: silence after that which ends the connection; it must cover a round trip
            and what is in flight ahead of the answer.
        connect_seconds: what a connection may take to be made, TLS handshake included.
    """

    keepalive_seconds: float
    keepalive_timeout_seconds: float
    connect_seconds: float = EDGE_CONNECT_SECONDS

    def client_options(self) -> Options:
        """For one channel of a client."""
        return (
            *_UNCOMPRESSED,
            *self._keepalive_options(),
            # The smallest backoff is also what a connection may take; a restarted server is found soon.
            ("grpc.min_reconnect_backoff_ms", _milliseconds(self.connect_seconds)),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1000),
            # Channels with the same options would share one connection; see `GrpcClient`.
            ("grpc.use_local_subchannel_pool", 1),
        )

    def server_options(self) -> Options:
        """For a server."""
        return (
            *_UNCOMPRESSED,
            *self._keepalive_options(),
            # Without these a server evicts healthy clients for pinging too often.
            ("grpc.http2.min_ping_interval_without_data_ms", 300),
            ("grpc.http2.max_ping_strikes", 0),
            ("grpc.so_reuseport", 0),
            ("grpc.server_handshake_timeout_ms", _milliseconds(DEVICE_CONNECT_SECONDS)),
            # Connections are renewed every hour, so that callers check the server's certificate again, too.
            ("grpc.max_connection_age_ms", 3_600_000),
            ("grpc.max_concurrent_streams", MOST_OPEN_CALLS),
            ("grpc.max_allowed_incoming_connections", most_connections()),
        )

    def _keepalive_options(self) -> Options:
        # Any bytes that arrive end the wait of `keepalive_timeout_ms`, but only the answer itself ends that
        # of `ping_timeout_ms`; a frozen peer is noticed only with both.
        timeout = _milliseconds(self.keepalive_timeout_seconds)
        return (
            ("grpc.keepalive_time_ms", _milliseconds(self.keepalive_seconds)),
            ("grpc.keepalive_timeout_ms", timeout),
            ("grpc.http2.ping_timeout_ms", timeout),
            ("grpc.keepalive_permit_without_calls", 1),
        )


def most_connections() -> int:
    """How many connections a server accepts: strangers must leave it descriptors for its own files."""
    if sys.platform == "win32":
        return _MOST_CONNECTIONS
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS
    return max(1, min(_MOST_CONNECTIONS, int(_SHARE_OF_FILES * soft)))


def device_connections(parameters: DeploymentParameters) -> ConnectionParameters:
    """Between a device and its edge server."""
    return ConnectionParameters(
        parameters.keepalive_seconds, parameters.keepalive_timeout_seconds, DEVICE_CONNECT_SECONDS
    )


def transfer_connections(parameters: DeploymentParameters) -> ConnectionParameters:
    """Between edge servers, for models."""
    return ConnectionParameters(parameters.keepalive_seconds, parameters.keepalive_timeout_seconds)


def control_connections(parameters: DeploymentParameters) -> ConnectionParameters:
    """Between edge servers, for everything but models: dead connections must not delay an election."""
    most = max(1.0, _ELECTION_TIMEOUTS * parameters.election_seconds)
    return ConnectionParameters(
        min(parameters.keepalive_seconds, most), min(parameters.keepalive_timeout_seconds, most)
    )


def _milliseconds(seconds: float) -> int:
    return max(1, round(1000 * seconds))
