"""Where the processor time of a federation goes: each node looks at its own threads a hundred times a second.

A thread in each node (`watch_this_node`) reads how much processor time every thread has used since the last
look, and books it on what that thread is doing now: the innermost line of code that `ITEMS` knows. All else
is the event loop or gRPC, which encrypts in threads of its own and in the loop's. So the sum is exact, and
each item is a sample. Where processes wait for cores, they also do more that depends on time alone.
"""

import json
import linecache
import multiprocessing
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

VARIABLE = "CFEL_BENCH_BREAKDOWN"
"""Names the directory where nodes write what they saw; nothing is looked at without it."""
_EVERY_SECONDS = 0.01
_WRITE_SECONDS = 0.05

TRANSPORT = "gRPC, TLS and event loops"
_WATCHING = "watching"
_TEXTS = {
    "hash": r"(deployment/.*|flat\.py):.*((digest|found)\.update\(|hashlib\.sha256\(\w)",
    "receive: join pieces": r"messages\.py:(join_message|join):|transfer\.py:_add:",
    "send: cut pieces": r"messages\.py:(cut|split_message):|payloads\.py:",
    "check": r"edge/checks\.py:",
    "unpack": r"packing\.py:_?(unpack|check)",
    "pack": r"packing\.py:|payloads\.py:make_upload",
    "save": r"state_file\.py:|durable\.py:|host\.py:(replace|append)|storage\.py:|device/memory\.py:",
    "publish": r"publishing\.py:|models/files\.py:",
    "estimate": r"local/estimates\.py:",
    "compress": r"top_k\.py:|compressors\.py:(?!add_to)",
    "aggregate": r"edge\.py:(update_edge_model|edge_aggregate|add_updates|weighted_model)|flat\.py:is_finite",
    "train, evaluate": r"learning/(device|local/|models/|task|data/|evaluate)",
    "coordinate": r"/(coordinator|control|rounds|election|system|measurement)/|cost\.py:|runlog/",
    "messages": r"deployment/protocol/|deployment/security/",
}
"""What is done, by lines of code as "file:function: text"; the first that fits."""
ITEMS = {name: re.compile(text) for name, text in _TEXTS.items()}


def find_item(frame: FrameType | None) -> str:
    """What a thread with this innermost frame is doing."""
    while frame is not None:
        code = frame.f_code
        line = linecache.getline(code.co_filename, frame.f_lineno or 0)
        place = f"{code.co_filename}:{code.co_name}: {line}"
        if "/cfel/" in place:
            for name, pattern in ITEMS.items():
                if pattern.search(place):
                    return name
        frame = frame.f_back
    return TRANSPORT


def watch_this_node() -> None:
    """Starts to look, in a node of a federation that is to be looked at."""
    directory = os.environ.get(VARIABLE)
    if directory is not None and multiprocessing.parent_process() is not None:
        path = Path(directory) / f"{multiprocessing.current_process().name}.jsonl"
        threading.Thread(target=watch, args=(path,), daemon=True).start()


def watch(path: Path) -> None:
    """Looks at this process for ever, and appends to a file what it has spent so far."""
    spent, known, written = Counter[str](), dict[int, int](), 0.0
    own = threading.get_native_id()
    with path.open("a", encoding="utf-8") as file:
        while True:
            time.sleep(_EVERY_SECONDS)
            frames = sys._current_frames()
            idents = {each.native_id: each.ident for each in threading.enumerate()}
            for task in Path("/proc/self/task").iterdir():
                number, used = int(task.name), _read_nanoseconds(task)
                more, known[number] = used - known.get(number, 0), used
                if more > 0:
                    item = _WATCHING if number == own else find_item(frames.get(idents.get(number) or 0))
                    spent[item] += more
            del frames
            if time.time() > written + _WRITE_SECONDS:
                written = time.time()
                spent_seconds = {name: each / 1e9 for name, each in spent.items()}
                file.write(json.dumps({"time": written, "spent": spent_seconds}) + "\n")
                file.flush()


def _read_nanoseconds(task: Path) -> int:
    """Processor time of a thread; 0 if it has ended."""
    try:
        return int((task / "schedstat").read_text(encoding="ascii").split()[0])
    except OSError:
        return 0


def read_spent(path: Path, begin: float, end: float) -> Counter[str]:
    """Seconds of processor time that a node spent on each item between two moments."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    def at(moment: float) -> Mapping[str, float]:
        return next((row["spent"] for row in reversed(rows) if row["time"] <= moment), {})

    found, before = Counter(at(end)), at(begin)
    found.subtract(before)
    del found[_WATCHING]
    return found
