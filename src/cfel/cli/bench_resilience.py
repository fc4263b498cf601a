"""`cfel bench resilience`: what a slow link, a dead edge server and dead coordinators cost a federation."""

import argparse
import asyncio
import statistics
from collections.abc import Sequence

from rich.console import Console

from cfel.bench.resilience import (
    MAX_BEYOND_GONE,
    MAX_MEDIAN_VACANCY,
    MAX_VACANCY,
    GoneServer,
    SlowLink,
    Vacancies,
    as_document,
    measure_gone,
    measure_slow_link,
    measure_vacancies,
)
from cfel.cli.output import new_table, print_json, print_table

PARTS = ("slow_link", "gone", "coordinator")
KILLS, QUICK_KILLS = 100, 10


def run(arguments: argparse.Namespace) -> int:
    """Runs the benchmark and prints the results."""
    progress = Console(stderr=True, highlight=False)
    wanted = PARTS if arguments.only is None else (arguments.only,)
    links: list[SlowLink] = []
    gone: list[GoneServer] = []
    vacancies: list[Vacancies] = []
    if "slow_link" in wanted:
        rounds = 1 if arguments.quick else 8
        progress.print(f"[dim]slow link: {rounds} × about 50 s …[/]")
        links.append(asyncio.run(measure_slow_link(rounds)))
    if "gone" in wanted:
        for coordinated in (True,) if arguments.quick else (False, True, False, True):
            progress.print(f"[dim]{_name_killed(coordinated)} is killed for good …[/]")
            gone.append(asyncio.run(measure_gone(coordinated=coordinated)))
    if "coordinator" in wanted:
        kills = QUICK_KILLS if arguments.quick else KILLS
        progress.print(f"[dim]the coordinator is killed {kills} times …[/]")
        vacancies.append(asyncio.run(measure_vacancies(kills)))
    if arguments.json:
        print_json(as_document(links, gone, vacancies))
    else:
        _print_results(Console(highlight=False), links, gone, vacancies)
    return 0


def _name_killed(coordinated: bool) -> str:
    return "the coordinator" if coordinated else "another edge server"


def _print_results(
    console: Console, links: Sequence[SlowLink], gone: Sequence[GoneServer], vacancies: Sequence[Vacancies]
) -> None:
    if links:
        table = new_table(
            *("model MB", "sent MB", "link alone s", "round s", "slowest s", "deadline s"),
            *("took part", "goal"),
        )
        for link in links:
            table.add_row(
                f"{link.model_bytes / 1e6:.2f}",
                f"{link.carried_bytes / 1e6:.2f}",
                f"{link.link_seconds:.1f}",
                f"{statistics.median(link.round_seconds):.1f}",
                f"{max(link.round_seconds):.1f}",
                f"{link.deadline_seconds:.0f}",
                f"{sum(link.took_part)} of {len(link.took_part)}",
                "all",
            )
        print_table(console, "A device on 200 kbit/s and 500 ms", table)
        console.print(f"The link was shaped by {links[0].shaper}.\n")
    if gone:
        table = new_table("killed", "gone_seconds", "usual round s", "longest s", "lost s", "goal")
        for each in gone:
            table.add_row(
                _name_killed(each.coordinated),
                f"{each.gone_seconds:.0f}",
                f"{each.usual_seconds:.2f}",
                f"{each.longest_seconds:.2f}",
                f"{each.lost_seconds:.2f}",
                f"≤ {each.gone_seconds + MAX_BEYOND_GONE:.0f}",
            )
        print_table(console, "An edge server killed for good", table)
    if vacancies:
        table = new_table("kills", "median s", "goal", "longest s", "goal")
        for found in vacancies:
            table.add_row(
                str(len(found.seconds)),
                f"{found.median:.2f}",
                f"< {MAX_MEDIAN_VACANCY:.1f}",
                f"{found.longest:.2f}",
                f"< {MAX_VACANCY:.0f}",
            )
        print_table(console, "Seconds without a coordinator", table)
