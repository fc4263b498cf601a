"""The live dashboard: a page that shows a `Status` as it changes, its JSON, its metrics.

    async with serve(dashboard_app(snapshot, changes), port=8470) as address:
        ...

It is handed functions by the caller and knows neither the deployment nor the simulator. `watching` reads run
directories for it.
"""

from cfel.dashboard.app import Dashboard, dashboard_app
from cfel.dashboard.serving import serve
from cfel.dashboard.watching import RunWatcher

__all__ = ["Dashboard", "RunWatcher", "dashboard_app", "serve"]
