"""All remote methods of a federation; docs/protocol.md has a table of them, which a test compares."""

from cfel.deployment.protocol.calls import AnyRequest
from cfel.deployment.protocol.coordinator_requests import (
    CloseCommand,
    EstimateCommand,
    FetchCommand,
    MeanMetricRequest,
    MixCommand,
    NewestRequest,
    PlanCommand,
    ProposeCommand,
    ReleaseRequest,
    StopCommand,
)
from cfel.deployment.protocol.device_requests import (
    DivergedRequest,
    EstimatesRequest,
    ModelRequest,
    NextRequest,
    UploadPartRequest,
    UploadRequest,
)
from cfel.deployment.protocol.peer_requests import (
    ElectionRequest,
    HelloRequest,
    PeerModelRequest,
    RecordsRequest,
    StatusRequest,
)

METHODS: tuple[type[AnyRequest], ...] = (
    NextRequest,
    ModelRequest,
    EstimatesRequest,
    UploadPartRequest,
    UploadRequest,
    DivergedRequest,
    NewestRequest,
    EstimateCommand,
    PlanCommand,
    FetchCommand,
    MixCommand,
    ProposeCommand,
    CloseCommand,
    StopCommand,
    PeerModelRequest,
    RecordsRequest,
    MeanMetricRequest,
    ReleaseRequest,
    HelloRequest,
    ElectionRequest,
    StatusRequest,
)
"""Every remote method, in the order of docs/protocol.md."""

TRANSFER_METHODS = frozenset(each.method for each in METHODS if each.is_transfer)
"""Methods with large bodies."""
