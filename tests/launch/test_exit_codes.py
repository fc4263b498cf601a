"""Exit codes of nodes: which failures a restart may end."""

import pytest

from cfel import errors
from cfel.launch.processes import choose_exit_code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.DeploymentError("address in use"), 1),
        (errors.DiskError("no space left"), 1),
        (errors.RunBusyError("another process"), 1),
        (errors.DashboardError("port in use"), 1),
        (errors.ExperimentError("wrong key"), 2),
        (errors.NotAdmittedError("revoked"), 3),
        (errors.CredentialsError("edge-0.pem is not a certificate"), 3),
        (errors.SilentEdgeServerError("silent"), 4),
        (errors.AllDivergedError("global round 1"), 6),
        (errors.DamagedError("state.bin is damaged"), 5),
        (errors.RunDirectoryError("another experiment"), 5),
    ],
)
def test_codes(error: errors.CfelError, code: int) -> None:
    assert choose_exit_code(error) == code
