"""The live dashboard: a page that shows a `Status` as it changes, the same as JSON, and metrics.

    async with serve(Dashboard(snapshot, changes), port=8470) as address:
        ...

The caller passes in functions, so the dashboard knows neither the deployment nor the simulator. `run_watcher`
reads run directories for it.
"""

from cfel.dashboard.app import Dashboard
from cfel.dashboard.run_watcher import RunWatcher
from cfel.dashboard.server import serve

__all__ = ["Dashboard", "RunWatcher", "serve"]
