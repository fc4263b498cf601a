"""Operates a federation on four hosts, as an operator would: only with commands of `cfel`.

    python -m tests.operator_trial --out DIR

Each host is a network namespace, and the operator sits at the hub between them. Sets up 3 edge servers and 6
devices, grows to 5 and 20, loses the coordinator for good, moves its devices, extends the run, rolls all
certificates and returns to an earlier model. After each step, `cfel status`, the dashboards, their metrics
and `/readyz` must say what is wrong, and what to do. At the end the simulator repeats the run from the
federation's own log, and must find the same models.

Needs root and `ip`. Prints what was done and what it took, in seconds of a machine that may be busy: the load
is printed, too.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tests.support.hosts import Hosts, make_hosts

HOSTS = 4
DASHBOARD_PORT = 8470
GONE_SECONDS = 5.0
PATIENCE_SECONDS = 120.0
LEAST_ROUNDS_LEFT = 12
EXPERIMENT = f"""
preset = "demo"
name = "trial"

[rounds]
global = 60
edge = 2
local = 3

[fleet]
devices = 6
clusters = 3

[simulation]
engine = "threads"

[deployment]
gone_seconds = {GONE_SECONDS}
publish_every = 2
time_scale = 0.005
"""
Value = TypeVar("Value")


class TrialError(Exception):
    """What the trial found wrong."""


def wait_for(what: str, find: Callable[[], Value | None], seconds: float = PATIENCE_SECONDS) -> Value:
    """Looks until there is something."""
    deadline = time.monotonic() + seconds
    while (found := find()) is None or found is False:
        if time.monotonic() > deadline:
            raise TrialError(f"waited {seconds:g} s in vain until {what}")
        time.sleep(0.1)
    return found


def expect(holds: object, what: str) -> None:
    """Raises a `TrialError` unless something holds."""
    if not holds:
        raise TrialError(what)


@dataclass(frozen=True)
class View:
    """What an operator sees of one edge server."""

    status: dict[str, Any]  # /status.json
    metrics: dict[str, float]  # /metrics, by name with labels
    ready: str  # /readyz: "ok" or the reason


@dataclass
class Federation:
    """Hosts with nodes, and the operator at the hub."""

    hosts: Hosts
    out: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)  # by node
    edges: dict[int, int] = field(default_factory=dict)  # host of each edge server
    figures: list[tuple[str, str]] = field(default_factory=list)

    def note(self, what: str, value: str) -> None:
        """Notes a figure, and prints it."""
        self.figures.append((what, value))
        sys.stdout.write(f"{what}: {value} (load {os.getloadavg()[0]:.1f})\n")
        sys.stdout.flush()

    # Commands

    def run(self, host: int | None, *words: str, code: int = 0) -> str:
        """Runs a command of `cfel` on a host or, with None, as the operator; returns what it printed."""
        command = self.hosts.wrap(host, sys.executable, "-m", "cfel", *words)
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=self.folder(host), timeout=PATIENCE_SECONDS
        )
        expect(done.returncode == code, f"cfel {' '.join(words)}: {done.returncode}, {done.stderr} {done.stdout[-3000:]}")
        return done.stdout

    def folder(self, host: int | None) -> Path:
        """What a host has on its disk."""
        path = self.out / ("operator" if host is None else f"host-{host}")
        path.mkdir(parents=True, exist_ok=True)
        return path

    @contextmanager
    def invite(self, *words: str) -> Iterator[dict[str, str]]:
        """Runs `cfel invite` until all have joined; yields the tokens by node."""
        command = self.hosts.wrap(None, sys.executable, "-m", "cfel", "invite", "federation", *words)
        at = ("--at", self.hosts.find_address(None), "--json")
        process = subprocess.Popen(
            [*command, *at], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.folder(None)
        )
        try:
            expect(process.stdout is not None, "no output")
            text = ""
            for line in process.stdout or ():
                text += line
                if line.startswith("}"):
                    break
            if not text:
                raise TrialError(f"cfel invite {' '.join(words)}: {process.communicate()[1]}")
            yield json.loads(text)
            expect(process.wait(PATIENCE_SECONDS) == 0, "cfel invite has failed")
        finally:
            process.kill()
            process.communicate()

    def join(self, host: int, tokens: dict[str, str], *words: str) -> None:
        """Runs `cfel join` on a host, until the experiment is over."""
        names = "+".join(tokens)
        command = self.hosts.wrap(host, sys.executable, "-m", "cfel", "join", *tokens.values(), *words)
        with (self.folder(host) / f"{names[:60]}.log").open("wb") as log:
            process = subprocess.Popen(
                [*command, "--out", "."], stdout=log, stderr=log, cwd=self.folder(host), start_new_session=True
            )
        self.processes |= dict.fromkeys(tokens, process)

    def join_edge(self, host: int, number: int, token: str) -> None:
        """Starts an edge server, with a dashboard."""
        self.edges[number] = host
        self.join(host, {f"edge-{number}": token}, "--set", f"dashboard=127.0.0.1:{DASHBOARD_PORT + number}")

    # What an operator sees

    def ask_status(self, code: int = 0) -> dict[str, Any]:
        """`cfel status --json`."""
        document: dict[str, Any] = json.loads(self.run(None, "status", "federation", "--json", code=code))
        return document

    def view(self, number: int) -> View:
        """The dashboard of an edge server, from its own host."""
        pages = []
        for page in ("status.json", "metrics", "readyz"):
            address = f"http://127.0.0.1:{DASHBOARD_PORT + number}/{page}"
            code = (
                "import sys, urllib.request, urllib.error\n"
                "try: print(urllib.request.urlopen(sys.argv[1], timeout=10).read().decode())\n"
                "except urllib.error.HTTPError as error: print(error.read().decode())"
            )
            command = self.hosts.wrap(self.edges[number], sys.executable, "-I", "-c", code, address)
            pages.append(subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout)
        lines = (line for line in pages[1].splitlines() if line and not line.startswith("#"))
        metrics = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}
        return View(json.loads(pages[0]), metrics, pages[2].strip())

    def rounds(self, number: int) -> int:
        """Rounds that an edge server has logged."""
        log = self.folder(self.edges[number]) / f"edge-{number}" / "state" / "rounds.jsonl"
        return len(log.read_bytes().splitlines()) if log.exists() else 0

    def last_round(self) -> int:
        """The newest round that anybody has logged."""
        return max(self.rounds(number) for number in self.edges)

    def has_worked(self, device: int, host: int, after: int = 0) -> bool:
        """Whether a device has sent an update after so many bytes of its log."""
        return "bytes sent" in self.read_log(f"device-{device}", host)[after:]

    def read_log(self, node: str, host: int) -> str:
        """The log of a node."""
        places = [self.folder(host) / f"{node}.log", self.folder(host) / node / f"{node}.log"]
        return "".join(path.read_text() for path in places if path.exists())

    def keep_running(self) -> None:
        """Extends the run if it would soon be over."""
        status = self.view(min(self.edges)).status
        if status["rounds"] - status["round"] < LEAST_ROUNDS_LEFT:
            self.run(None, "extend", "--rounds", "30", "--federation", OPERATOR)


OPERATOR = "federation/nodes/operator-0.toml"


def set_up(federation: Federation) -> None:
    """3 edge servers and 6 devices on 3 hosts: one command for the operator, two for each host."""
    (federation.folder(None) / "experiment.toml").write_text(EXPERIMENT)
    addresses = ",".join(federation.hosts.find_address(i) for i in range(3))
    with federation.invite("--experiment", "experiment.toml", "--edges", addresses) as tokens:
        begin = time.monotonic()
        for i in range(3):
            federation.join_edge(i, i, tokens[f"edge-{i}"])
            federation.join(i, {name: tokens[name] for name in (f"device-{2 * i}", f"device-{2 * i + 1}")})
    wait_for("round 1 is logged", lambda: federation.last_round() >= 1)
    federation.note("first join to first record", f"{time.monotonic() - begin:.1f} s")
    check_health(federation)


def check_health(federation: Federation) -> None:
    """Nothing is wrong, and nobody says so."""
    for edge in federation.ask_status()["edges"]:
        expect(edge["alive"] and not edge["problem"], f"cfel status: {edge}"[:2000])
    for number in federation.edges:
        view = federation.view(number)
        expect(view.ready == "ok", f"edge-{number}: /readyz says {view.ready}")
        expect(view.metrics["cfel_ready"] == 1 and view.metrics["cfel_problem"] == 0, f"edge-{number}: metrics")


def grow(federation: Federation) -> None:
    """2 more edge servers and 14 more devices."""
    hosts = federation.hosts
    places = {3: (3, hosts.find_address(3)), 4: (0, f"{hosts.find_address(0)}:7401")}
    for number, (host, address) in places.items():
        federation.keep_running()
        asked = time.monotonic()
        with federation.invite(f"edge-{number}", "--address", address) as tokens:
            federation.note(f"edge-{number} invited", f"{time.monotonic() - asked:.1f} s")
            begin = time.monotonic()
            federation.join_edge(host, number, tokens[f"edge-{number}"])
        wait_for(f"edge-{number} logs a round", lambda number=number: federation.rounds(number) > 0)
        federation.note(f"edge-{number}: join to first record", f"{time.monotonic() - begin:.1f} s")
    begin_number = 6
    for edge, count in ((3, 5), (4, 5), (1, 4)):
        federation.keep_running()
        names = [f"device-{n}" for n in range(begin_number, begin_number + count)]
        asked = time.monotonic()
        with federation.invite(*names, "--edge", str(edge)) as tokens:
            federation.note(f"{count} devices invited", f"{time.monotonic() - asked:.1f} s")
            begin = time.monotonic()
            federation.join(3, {name: tokens[name] for name in names})
        for n in range(begin_number, begin_number + count):
            wait_for(f"device-{n} sends an update", lambda n=n: federation.has_worked(n, 3))
        federation.note(f"{count} devices: join to first updates", f"{time.monotonic() - begin:.1f} s")
        begin_number += count
    check_health(federation)


def lose_coordinator(federation: Federation) -> int:
    """The coordinator's process is killed and its disk is gone; returns its number."""
    federation.keep_running()
    status = federation.view(0).status
    number = int(status["coordinator"].removeprefix("edge-"))
    devices = {d["device"] for c in status["clusters"] if c["cluster"] == number for d in c["devices"]}
    host = federation.edges.pop(number)
    logs = {n: (h, len(federation.read_log(f"device-{n}", h))) for n in devices for h in [_host_of(n)]}
    process = federation.processes.pop(f"edge-{number}")
    before, begin = federation.last_round(), time.monotonic()
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    shutil.rmtree(federation.folder(host) / f"edge-{number}")
    wait_for("a round is logged", lambda: federation.last_round() > before)
    federation.note("coordinator gone to next record", f"{time.monotonic() - begin:.1f} s")
    recorded = time.monotonic()
    view = federation.view(min(federation.edges))
    sys.stdout.write(f"problem: {view.status['problem']}\n")
    expect(f"edge-{number}" in view.status["problem"], f"problem: {view.status['problem']}")
    for n, (h, size) in logs.items():
        wait_for(f"device-{n} works elsewhere", lambda n=n, h=h, size=size: federation.has_worked(n, h, size))
    federation.note(f"its {len(logs)} devices at work elsewhere", f"{time.monotonic() - recorded:.1f} s later")
    return number


def _host_of(device: int) -> int:
    return device // 2 if device < 6 else 3


def clean_up(federation: Federation, gone: int) -> None:
    """Removes the edge server that is gone, and shares its devices out by hand."""
    federation.keep_running()
    said = federation.run(None, "fleet", "remove", "edge", str(gone), "--federation", OPERATOR)
    sys.stdout.write(said)
    status = wait_for(
        "the fleet is without it",
        lambda: (s := federation.view(min(federation.edges)).status)["clusters"]
        and gone not in [c["cluster"] for c in s["clusters"]]
        and s,
    )
    sizes = {c["cluster"]: [d["device"] for d in c["devices"]] for c in status["clusters"]}
    largest, smallest = max(sizes, key=lambda i: len(sizes[i])), min(sizes, key=lambda i: len(sizes[i]))
    if largest != smallest:
        moved = str(sizes[largest][0])
        said = federation.run(
            None, "fleet", "move", "device", moved, "--edge", str(smallest), "--federation", OPERATOR
        )
        sys.stdout.write(said)
    check_health(federation)


def extend(federation: Federation) -> None:
    """More rounds and joules."""
    before = federation.view(min(federation.edges)).status["rounds"]
    said = federation.run(
        None, "extend", "--rounds", "10", "--joules", "100", "--federation", OPERATOR
    )
    sys.stdout.write(said)
    after = federation.view(min(federation.edges)).status["rounds"]
    expect(after == before + 10, f"rounds: {before} and then {after}")


def renew(federation: Federation) -> None:
    """New certificates for all nodes, while they run."""
    places = {f"edge-{i}": host for i, host in federation.edges.items()}
    places |= {f"device-{n}": _host_of(n) for n in range(20)}
    before = {i: federation.view(i).status["certificate_expires"] for i in federation.edges}
    begin = time.monotonic()
    with federation.invite(*places, "--hours", "1440") as tokens:
        for host in sorted(set(places.values())):
            own = [tokens[name] for name, each in places.items() if each == host]
            federation.run(host, "join", *own, "--out", ".", "--setup-only")
    for name, host in places.items():
        wait_for(
            f"{name} uses its new certificate",
            lambda name=name, host=host: "new certificate in use" in federation.read_log(name, host),
        )
    for i, old in before.items():
        expect(federation.view(i).status["certificate_expires"] > old + 86400, f"edge-{i}: old certificate")
    federation.note(f"{len(places)} certificates rolled", f"{time.monotonic() - begin:.1f} s")
    check_health(federation)


def roll_back(federation: Federation) -> None:
    """All nodes return to an earlier model, and to new ones again."""
    for host in range(HOSTS):
        for node in sorted(federation.folder(host).glob("*-*/state")):
            if not (node / "published.json").exists():
                continue
            used = json.loads(federation.run(host, "rollback", str(node), "--json"))[str(node)]
            expect(used["used"] == used["pinned"] < used["kept"][-1]["round"], f"{node}: {used}")
            federation.run(host, "rollback", str(node), "--newest")


def finish(federation: Federation) -> None:
    """The run ends; all nodes end with 0, and the simulator finds the same models."""
    wait_for(
        "all nodes have ended",
        lambda: all(each.poll() is not None for each in federation.processes.values()),
        600.0,
    )
    codes = {name: each.returncode for name, each in federation.processes.items()}
    expect(not any(codes.values()), f"exit codes: {codes}")
    first = min(federation.edges)
    state = federation.folder(federation.edges[first]) / f"edge-{first}" / "state"
    federation.run(None, "fleet", "replay", str(state), "--out", "replay.toml")
    federation.run(None, "run", "replay.toml", "--out", "replayed")
    ours = _read_models(state / "rounds.jsonl")
    theirs = _read_models(federation.folder(None) / "replayed" / "rounds.jsonl")
    same = sum(a == b for a, b in zip(ours, theirs, strict=True))
    federation.note("rounds with the simulator's models", f"{same} of {len(ours)}")
    expect(same == len(ours), f"round {[a == b for a, b in zip(ours, theirs, strict=True)].index(False) + 1}")


def _read_models(path: Path) -> list[str]:
    return [json.loads(line)["model_sha256"] for line in path.read_text().splitlines()]


def operate(out: Path) -> Sequence[tuple[str, str]]:
    """The whole trial; returns its figures."""
    with make_hosts(HOSTS) as hosts:
        federation = Federation(hosts, out)
        try:
            set_up(federation)
            grow(federation)
            gone = lose_coordinator(federation)
            clean_up(federation, gone)
            extend(federation)
            renew(federation)
            roll_back(federation)
            finish(federation)
        finally:
            for process in set(federation.processes.values()):
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
    return federation.figures


def main() -> int:
    """Runs the trial."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, help="keep everything here (default: a folder that is removed)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            operate((arguments.out or Path(folder)).absolute())
        except TrialError as error:
            sys.stderr.write(f"{error}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
