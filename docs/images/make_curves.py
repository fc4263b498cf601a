"""Draws `curves.svg`: the curves of three clusters, their sum, and the price at which the sum meets the cap.

python docs/images/make_curves.py
"""

from pathlib import Path

import numpy as np

from cfel.control import RoundProblem
from cfel.control.curves import Grid, make_curve, search_price
from cfel.control.problem import find_feasible_limits
from cfel.control.segments import PricedFleet
from cfel.system.conditions import RandomConditions

WIDTH, HEIGHT, LEFT, BOTTOM = 640, 300, 60, 250
COLOURS = ("#4c78a8", "#f58518", "#54a24b")


def build_fleet() -> tuple[PricedFleet, float]:
    """Eight devices in each of three clusters, with 60 % of the energy that full work would take."""
    now = RandomConditions(alpha_joules=1.5).conditions(1, 0, 0, 24, 32.0 * 6_603_710)
    full = float((5 * now.alpha + now.power * now.nu).sum())
    problem = RoundProblem(
        *(5, 1.0, 1.0, now.mu, now.alpha, now.nu, now.power, np.arange(24) // 8),
        time_cap=np.full(3, 900.0),
        energy_cap=0.6 * full,
    )
    return PricedFleet.from_problem(problem, find_feasible_limits(problem)), problem.energy_cap


def draw() -> str:
    """The picture as SVG."""
    fleet, cap = build_fleet()
    price = search_price(fleet, cap).price
    prices = price * np.geomspace(0.05, 20, 120)
    joules = make_curve(fleet, Grid.of_prices(prices))[0].joules[0]
    top = joules.sum(axis=1).max() * 1.05
    across = LEFT + (WIDTH - LEFT - 90) * np.linspace(0, 1, len(prices))

    def high(value: float) -> float:
        return BOTTOM - (BOTTOM - 20) * value / top

    def line(values: np.ndarray, colour: str, width: float) -> str:
        points = " ".join(f"{x:.0f},{high(y):.1f}" for x, y in zip(across, values, strict=True))
        return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}"/>'

    def text(x: float, y: float, words: str, anchor: str = "start") -> str:
        return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{words}</text>'

    middle, end = float(np.interp(np.log(price), np.log(prices), across)), across[-1] + 6
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'font-family="sans-serif" font-size="13" fill="#444">',
        "<title>Energy of three clusters and their sum, by the price of energy</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        *(line(column, colour, 1.5) for column, colour in zip(joules.T, COLOURS, strict=True)),
        line(joules.sum(axis=1), "#222", 2.5),
        f'<path d="M{LEFT},20V{BOTTOM}H{across[-1]:.0f}M{LEFT},{high(cap):.0f}H{across[-1]:.0f}'
        f'M{middle:.0f},{high(cap):.0f}V{BOTTOM}" fill="none" stroke="#888" stroke-dasharray="4 3"/>',
        text(end, high(joules.sum(axis=1)[-1]), "sum"),
        *(text(end, high(y) + 4, f"cluster {i}") for i, y in enumerate(joules[-1])),
        text(across[-1], high(cap) - 6, "energy cap", "end"),
        text(middle, BOTTOM + 18, "λ, the price of all", "middle"),
        text(across[-1], BOTTOM + 38, "price of a joule, a factor of 400 from left to right", "end"),
        text(LEFT - 8, 30, "energy", "end"),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("curves.svg").write_text(draw(), encoding="utf-8")
