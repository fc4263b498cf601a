"""A Ray cluster of several nodes in a separate namespace, controlled by lines on standard input.

Started by `conftest` inside new network and process namespaces: nothing outside can reach the cluster, which
has loopback only, and when this process ends, so does everything in it. Each line is a JSON document with
"do": "add" (a node), "remove" (the youngest, at once), "kill" (every process, or the first "count", whose
command line holds "name", with "signal" or SIGKILL) or "end". Every answer is a JSON document on a line.
"""

import fcntl
import json
import os
import signal
import socket
import struct
import sys
from pathlib import Path
from typing import Any

SIOCSIFFLAGS, IFF_UP = 0x8914, 1


def bring_loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14s", b"lo", IFF_UP, b""))


def find_processes(name: str) -> list[int]:
    """Processes of this namespace whose command line holds the name."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if name in words and "nsenter" not in words:
                found.append(int(folder.name))
    return sorted(found)


def kill(order: dict[str, Any]) -> dict[str, Any]:
    processes = find_processes(order["name"])[: order.get("count")]
    for process in processes:
        os.kill(process, order.get("signal", signal.SIGKILL))
    return {"killed": len(processes)}


def main() -> None:
    settings = json.loads(sys.argv[1])
    bring_loopback_up()
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 100 * 2**20, **settings["node"]}
    head = {**node, "include_dashboard": False, "_system_config": settings["system"]}
    cluster = Cluster(initialize_head=True, head_node_args={**head, "temp_dir": settings["folder"]})
    others = [cluster.add_node(**node) for _ in range(settings["nodes"] - 1)]
    print(json.dumps({"address": cluster.address}), flush=True)  # noqa: T201
    for line in sys.stdin:
        order = json.loads(line)
        answer: dict[str, Any] = {}
        match order["do"]:
            case "add":
                others.append(cluster.add_node(**node))
            case "remove":
                cluster.remove_node(others.pop(), allow_graceful=False)
            case "kill":
                answer = kill(order)
            case "end":
                break
        print(json.dumps(answer), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
