"""Draws the backhaul between edge servers on a circle."""

import numpy as np
from matplotlib.axes import Axes

from cfel.arrays import FloatArray, IndexArray
from cfel.report.style import INK, MUTED, SURFACE, Drawing, new_figure
from cfel.runlog import FleetDescription
from cfel.wording import plural

_MAX_NAMES = 40
_MAX_LINKS = 5000


def place_on_circle(count: int) -> FloatArray:
    """Points on the unit circle, clockwise from the top; one row per point."""
    angle = np.pi / 2 - 2 * np.pi * np.arange(count) / max(count, 1)
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


def draw_backhaul(fleet: FleetDescription) -> Drawing | None:
    """Draws edge servers with their number of devices; the width of a link is its mixing weight.

    None if there are too many links to tell apart.
    """
    if len(fleet.edges) > _MAX_LINKS:
        return None
    figure, (axes,) = new_figure(1, 4.2)
    points = place_on_circle(fleet.clusters)
    for a, b in fleet.edges:
        weight = (fleet.mixing[a][b] + fleet.mixing[b][a]) / 2
        axes.plot(*points[[a, b]].T, color=MUTED, linewidth=0.6 + 4.0 * weight, zorder=1)
    sizes = np.bincount(fleet.cluster, minlength=fleet.clusters)
    largest = min(700.0, 140_000.0 / max(fleet.clusters, 1) ** 2)  # neighbours must not overlap
    areas = largest * sizes / max(sizes.max(initial=1), 1)
    axes.scatter(points[:, 0], points[:, 1], s=areas, color=INK, edgecolor=SURFACE, zorder=2)
    if fleet.clusters <= _MAX_NAMES:
        _draw_names(axes, points, sizes)
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.set_xlim(-1.75, 1.75)
    axes.set_ylim(-1.45, 1.45)
    return Drawing(figure, ("edge", "devices", "neighbour", "mixing weight"), _list_links(fleet, sizes))


def _list_links(fleet: FleetDescription, sizes: IndexArray) -> list[tuple[object, ...]]:
    """Every edge server with the weight of its own model, then with that of each neighbour."""
    both = {pair for a, b in fleet.edges for pair in ((a, b), (b, a))}
    own = {(edge, edge) for edge in range(fleet.clusters)}
    return [(a, int(sizes[a]), b, fleet.mixing[a][b]) for a, b in sorted(both | own)]


def _draw_names(axes: Axes, points: FloatArray, sizes: IndexArray) -> None:
    for number, (point, size) in enumerate(zip(points, sizes, strict=True)):
        x, y = point * (1.22, 1.27)
        side = "center" if abs(x) < 0.3 else "left" if x > 0 else "right"
        axes.text(
            x, y, f"edge {number}\n{plural(int(size), 'device')}", ha=side, va="center", linespacing=1.1
        )
