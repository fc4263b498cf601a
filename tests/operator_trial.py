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
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.hosts import Hosts, make_hosts

HOSTS = 4
DASHBOARD_PORT = 8470
GONE_SECONDS = 5.0
PATIENCE_SECONDS = 300.0
END_SECONDS = 600.0
ROUNDS = 80
LEAST_ROUNDS_LEFT = 30
EXPERIMENT = f"""
preset = "demo"
name = "trial"

[rounds]
global = {ROUNDS}
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
# All hosts share the cores of one machine.
election_seconds = 1.0
# A global round takes about two seconds.
time_scale = 0.005
"""
READ_PAGE = """
import sys, urllib.error, urllib.request
try:
    answer = urllib.request.urlopen(sys.argv[1], timeout=10)
except urllib.error.HTTPError as error:
    answer = error
print(answer.read().decode())
"""


class TrialError(Exception):
    """What the trial found wrong."""


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
    rounds_planned: int = ROUNDS

    def note(self, what: str, value: str) -> None:
        """Notes a figure, and prints it."""
        self.figures.append((what, value))
        sys.stdout.write(f"{what}: {value} (round {self.last_round()}, load {os.getloadavg()[0]:.1f})\n")
        sys.stdout.flush()

    def wait(self, what: str, find: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
        """Looks until something holds."""
        deadline = time.monotonic() + seconds
        while not find():
            expect(time.monotonic() < deadline, f"waited {seconds:g} s in vain until {what}")
            time.sleep(0.1)

    @contextmanager
    def keep_running(self) -> Iterator[None]:
        """Extends the run whenever it would soon be over, so that a slow machine does not end the trial."""
        enough = threading.Event()

        def watch() -> None:
            while not enough.wait(1.0):
                if self.rounds_planned - self.last_round() < LEAST_ROUNDS_LEFT:
                    self.extend("--rounds", str(LEAST_ROUNDS_LEFT))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield
        finally:
            enough.set()
            watcher.join()

    # Commands

    def run(self, host: int | None, *words: str, code: int = 0) -> str:
        """Runs a command of `cfel` on a host or, with None, as the operator; returns what it printed."""
        command = self.hosts.wrap(host, sys.executable, "-m", "cfel", *words)
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=self.folder(host), timeout=END_SECONDS
        )
        said = f"{done.stderr} {done.stdout[-2000:]}"
        expect(done.returncode == code, f"cfel {' '.join(words)}: {done.returncode}, {said}")
        return done.stdout

    def change(self, *words: str) -> None:
        """A command that changes the fleet or its run."""
        begin = time.monotonic()
        said = self.run(None, *words, "--federation", "federation/nodes/operator-0.toml").strip()
        self.note(said, f"{time.monotonic() - begin:.1f} s")

    def extend(self, *words: str) -> None:
        """`cfel extend`."""
        self.change("extend", *words)
        self.rounds_planned += int(words[words.index("--rounds") + 1])

    @contextmanager
    def invite(self, *words: str) -> Iterator[dict[str, str]]:
        """Runs `cfel invite` until all have joined and were added; yields the tokens by node."""
        command = self.hosts.wrap(None, sys.executable, "-m", "cfel", "invite", "federation", *words)
        at = ("--at", self.hosts.find_address(None), "--json")
        with (self.folder(None) / "invite.log").open("a") as log:
            process = subprocess.Popen(
                [*command, *at], stdout=subprocess.PIPE, stderr=log, text=True, cwd=self.folder(None)
            )
        try:
            text = ""
            for line in process.stdout or ():
                text += line
                if line.startswith("}"):
                    break
            expect(text, f"cfel invite {' '.join(words)}: see invite.log")
            yield json.loads(text)
            expect(process.wait(PATIENCE_SECONDS) == 0, "cfel invite has failed")
        finally:
            process.kill()
            process.communicate()

    def join(self, host: int, tokens: dict[str, str], *words: str) -> None:
        """Runs `cfel join` on a host, until the experiment is over."""
        command = self.hosts.wrap(host, sys.executable, "-m", "cfel", "join", *tokens.values(), *words)
        with (self.folder(host) / f"{next(iter(tokens))}.log").open("wb") as log:
            process = subprocess.Popen(
                [*command, "--out", "."],
                stdout=log,
                stderr=log,
                cwd=self.folder(host),
                start_new_session=True,
            )
        self.processes |= dict.fromkeys(tokens, process)

    def join_edge(self, host: int, number: int, token: str) -> None:
        """Starts an edge server, with a dashboard."""
        self.edges[number] = host
        self.join(host, {f"edge-{number}": token}, "--set", f"dashboard=127.0.0.1:{DASHBOARD_PORT + number}")

    # What an operator sees

    def ask_status(self, code: int = 0) -> dict[int, dict[str, Any]]:
        """`cfel status --json`, by edge server."""
        document = json.loads(self.run(None, "status", "federation", "--json", code=code))
        return {each["edge"]: each for each in document["edges"]}

    def view(self, number: int) -> View:
        """The dashboard of an edge server, from its own host."""
        pages = []
        for page in ("status.json", "metrics", "readyz"):
            address = f"http://127.0.0.1:{DASHBOARD_PORT + number}/{page}"
            command = self.hosts.wrap(self.edges[number], sys.executable, "-I", "-c", READ_PAGE, address)
            got = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
            pages.append(got.stdout)
        lines = (line for line in pages[1].splitlines() if line and not line.startswith("#"))
        metrics = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}
        return View(json.loads(pages[0]), metrics, pages[2].strip())

    def has_problem(self, number: int) -> bool:
        """Whether an edge server says that something is wrong."""
        return bool(self.view(number).status["problem"])

    def list_devices(self) -> dict[int, list[int]]:
        """The devices of each edge server, as the first dashboard shows them in the next round."""
        before = self.last_round()
        self.wait("the next round is logged", lambda: self.rounds(min(self.edges)) > before)
        clusters = self.view(min(self.edges)).status["clusters"]
        return {each["cluster"]: [d["device"] for d in each["devices"]] for each in clusters}

    # What lies on the disks

    def folder(self, host: int | None) -> Path:
        """What a host has on its disk."""
        path = self.out / ("operator" if host is None else f"host-{host}")
        path.mkdir(parents=True, exist_ok=True)
        return path

    def rounds(self, number: int) -> int:
        """Rounds that an edge server has logged."""
        log = self.folder(self.edges[number]) / f"edge-{number}" / "state" / "rounds.jsonl"
        return log.read_bytes().count(b"\n") if log.exists() else 0

    def last_round(self) -> int:
        """The newest round that anybody has logged."""
        return max((self.rounds(number) for number in list(self.edges)), default=0)

    def has_logged(self, number: int) -> bool:
        """Whether an edge server has logged a round."""
        return self.rounds(number) > 0

    def has_worked(self, device: int, after: int = 0) -> bool:
        """Whether a device has sent an update after so many characters of its log."""
        return "bytes sent" in self.read_log(f"device-{device}")[after:]

    def has_renewed(self, node: str) -> bool:
        """Whether a node uses a new certificate."""
        return "new certificate in use" in self.read_log(node)

    def read_log(self, node: str) -> str:
        """The log of a node."""
        role, _, number = node.partition("-")
        host = self.edges[int(number)] if role == "edge" else find_host(int(number))
        places = [self.folder(host) / f"{node}.log", self.folder(host) / node / f"{node}.log"]
        return "".join(path.read_text() for path in places if path.exists())


def find_host(device: int) -> int:
    """The host of a device: two on each of the first three, those that come later on the last."""
    return device // 2 if device < 6 else 3


def set_up(federation: Federation) -> None:
    """3 edge servers and 6 devices on 3 hosts: one command for the operator, two for each host."""
    (federation.folder(None) / "experiment.toml").write_text(EXPERIMENT)
    addresses = ",".join(federation.hosts.find_address(i) for i in range(3))
    with federation.invite("--experiment", "experiment.toml", "--edges", addresses) as tokens:
        begin = time.monotonic()
        for i in range(3):
            federation.join_edge(i, i, tokens[f"edge-{i}"])
            federation.join(i, {name: tokens[name] for name in (f"device-{2 * i}", f"device-{2 * i + 1}")})
    federation.wait("round 1 is logged", partial(federation.has_logged, 0))
    federation.note("9 nodes: first join to first record", f"{time.monotonic() - begin:.1f} s")
    check_health(federation)


def check_health(federation: Federation) -> None:
    """Nothing is wrong, and nobody says so."""
    for number, edge in federation.ask_status().items():
        expect(edge["alive"] and not edge["problem"], f"cfel status: edge-{number}: {edge.get('problem')}")
    for number in federation.edges:
        view = federation.view(number)
        expect(view.ready == "ok", f"edge-{number}: /readyz says {view.ready}")
        found = view.metrics["cfel_ready"], view.metrics["cfel_problem"]
        expect(found == (1, 0), f"edge-{number}: ready and problem are {found}, {view.status['problem']}")


def grow(federation: Federation) -> None:
    """2 more edge servers and 14 more devices."""
    hosts = federation.hosts
    places = {3: (3, hosts.find_address(3)), 4: (0, f"{hosts.find_address(0)}:7401")}
    for number, (host, address) in places.items():
        with federation.invite(f"edge-{number}", "--address", address) as tokens:
            begin = time.monotonic()
            federation.join_edge(host, number, tokens[f"edge-{number}"])
            federation.wait(f"edge-{number} logs a round", partial(federation.has_logged, number))
        federation.note(f"edge-{number}: join to first record", f"{time.monotonic() - begin:.1f} s")
    for edge, numbers in ((3, range(6, 7)), (3, range(7, 11)), (4, range(11, 16)), (1, range(16, 20))):
        names = [f"device-{n}" for n in numbers]
        with federation.invite(*names, "--edge", str(edge)) as tokens:
            begin = time.monotonic()
            federation.join(3, {name: tokens[name] for name in names})
            for n in numbers:
                federation.wait(f"device-{n} sends an update", partial(federation.has_worked, n))
        took = time.monotonic() - begin
        federation.note(f"{len(names)} more devices of edge-{edge}: join to first update", f"{took:.1f} s")
    check_health(federation)


def lose_coordinator(federation: Federation) -> int:
    """The coordinator's process is killed and its disk is gone; returns its number."""
    status = federation.view(0).status
    number = int(status["coordinator"].removeprefix("edge-"))
    devices = federation.list_devices()[number]
    host = federation.edges.pop(number)
    logged = {n: len(federation.read_log(f"device-{n}")) for n in devices}
    process = federation.processes.pop(f"edge-{number}")
    before, begin = federation.last_round(), time.monotonic()
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    shutil.rmtree(federation.folder(host) / f"edge-{number}")
    federation.wait("a round is logged", lambda: federation.last_round() > before)
    federation.note(f"edge-{number}, the coordinator, gone: next record", f"{time.monotonic() - begin:.1f} s")
    recorded = time.monotonic()
    for n, size in logged.items():
        federation.wait(f"device-{n} works elsewhere", partial(federation.has_worked, n, size))
    took = time.monotonic() - recorded
    federation.note(f"its {len(logged)} devices at work elsewhere", f"{took:.1f} s after that")
    check_loss(federation, number)
    return number


def check_loss(federation: Federation, gone: int) -> None:
    """Everybody says that an edge server is gone, and what to do; the federation is ready without it."""
    expect(not federation.ask_status()[gone]["alive"], f"cfel status: edge-{gone} is alive")
    for number in federation.edges:
        federation.wait(f"edge-{number} says it", partial(federation.has_problem, number))
    for number in federation.edges:
        view = federation.view(number)
        problem = view.status["problem"]
        expect(f"edge-{gone}" in problem and "cfel fleet remove edge" in problem, f"problem: {problem!r}")
        expect(view.ready == "ok", f"edge-{number}: /readyz says {view.ready}")
        name = f'cfel_edge_up{{cluster="{gone}",node="edge-{gone}"}}'
        expect(view.metrics[name] == 0 and view.metrics["cfel_problem"] == 1, f"edge-{number}: metrics")
    sys.stdout.write(f"problem: {problem}\n")


def clean_up(federation: Federation, gone: int) -> None:
    """Removes the edge server that is gone, and moves a device by hand."""
    federation.change("fleet", "remove", "edge", str(gone))
    sizes = federation.list_devices()
    expect(gone not in sizes, f"edge-{gone} is still a member: {sizes}")
    largest, smallest = max(sizes, key=lambda i: len(sizes[i])), min(sizes, key=lambda i: len(sizes[i]))
    device = sizes[largest][0]
    federation.change("fleet", "move", "device", str(device), "--edge", str(smallest))
    moved = federation.list_devices()
    expect(device in moved[smallest], f"device-{device} has not moved: {moved}")
    check_health(federation)


def extend(federation: Federation) -> None:
    """More rounds and joules."""
    before = federation.view(min(federation.edges)).status
    federation.extend("--rounds", "10", "--joules", "100")
    federation.list_devices()
    after = federation.view(min(federation.edges)).status
    expect(after["rounds"] == before["rounds"] + 10, f"rounds: {before['rounds']}, then {after['rounds']}")
    more = after["joules_budget"] - before["joules_budget"]
    expect(abs(more - 100) < 1e-6, f"joules: {more:g} more")


def renew(federation: Federation) -> None:
    """New certificates for all nodes, while they run."""
    places = {f"edge-{i}": host for i, host in federation.edges.items()}
    places |= {f"device-{n}": find_host(n) for n in range(20)}
    before = {i: federation.view(i).status["certificate_expires"] for i in federation.edges}
    begin = time.monotonic()
    with federation.invite(*places, "--hours", "1440") as tokens:
        for host in sorted(set(places.values())):
            own = [tokens[name] for name, each in places.items() if each == host]
            federation.run(host, "join", *own, "--out", ".", "--setup-only")
    for name in places:
        federation.wait(f"{name} uses its new certificate", partial(federation.has_renewed, name))
    for i, old in before.items():
        expect(federation.view(i).status["certificate_expires"] > old + 86400, f"edge-{i}: old certificate")
    federation.note(f"{len(places)} certificates rolled", f"{time.monotonic() - begin:.1f} s")
    check_health(federation)


def roll_back(federation: Federation) -> None:
    """A node on every host returns to an earlier model, and to new ones again."""
    begin, nodes = time.monotonic(), 0
    for host in range(HOSTS):
        for published in sorted(federation.folder(host).glob("*-*/state/published.json"))[:1]:
            node, nodes = str(published.parent), nodes + 1
            used = json.loads(federation.run(host, "rollback", node, "--json"))[node]
            expect(used["used"] == used["pinned"] < used["kept"][-1]["round"], f"{node}: {used}")
            federation.run(host, "rollback", node, "--newest")
    federation.note(f"{nodes} nodes rolled back, and forward again", f"{time.monotonic() - begin:.1f} s")


def finish(federation: Federation) -> None:
    """The run ends; all nodes end with 0, and the simulator finds the same models."""
    left = federation.processes.values()
    federation.wait(
        "all nodes have ended", lambda: all(each.poll() is not None for each in left), END_SECONDS
    )
    codes = {name: each.returncode for name, each in federation.processes.items()}
    expect(not any(codes.values()), f"exit codes: {codes}")
    first = min(federation.edges)
    state = federation.folder(federation.edges[first]) / f"edge-{first}" / "state"
    federation.run(None, "fleet", "replay", str(state), "--out", "replay.toml")
    federation.run(None, "run", "replay.toml", "--out", "replayed")
    ours = _read_models(state / "rounds.jsonl")
    theirs = _read_models(federation.folder(None) / "replayed" / "rounds.jsonl")
    same = [a == b for a, b in zip(ours, theirs, strict=True)]
    federation.note("rounds with the simulator's models", f"{sum(same)} of {len(same)}")
    expect(all(same), f"round {[*same, False].index(False) + 1} is the first with other models")


def _read_models(path: Path) -> list[str]:
    return [json.loads(line)["model_sha256"] for line in path.read_text().splitlines()]


def operate(out: Path) -> Sequence[tuple[str, str]]:
    """The whole trial; returns its figures."""
    with make_hosts(HOSTS) as hosts:
        federation = Federation(hosts, out)
        try:
            set_up(federation)
            with federation.keep_running():
                grow(federation)
                gone = lose_coordinator(federation)
                clean_up(federation, gone)
                renew(federation)
                roll_back(federation)
            extend(federation)
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
