"""A federation that is operated with commands only, on hosts in namespaces; see `tests.operator_trial`."""

from pathlib import Path

import pytest

from cfel.errors import DeploymentError
from tests.operator_trial import operate
from tests.support.hosts import make_hosts

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(3000)]


def test_a_federation_is_set_up_grows_loses_a_server_and_ends(tmp_path: Path) -> None:
    try:
        with make_hosts(1):
            pass
    except DeploymentError as error:
        pytest.skip(str(error))
    assert operate(tmp_path)
