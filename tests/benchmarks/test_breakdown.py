"""The breakdown of processor time: what a process is seen doing, and what is counted between two moments."""

import json
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.breakdown import TRANSPORT, read_spent
from benchmarks.child import ROOT

HASHING = """
import sys, threading, time
from pathlib import Path
from benchmarks.breakdown import watch
from cfel.deployment.protocol.messages import Body
threading.Thread(target=watch, args=(Path(sys.argv[1]),), daemon=True).start()
end, content = time.process_time() + 1.0, bytes(2**24)
while time.process_time() < end:
    Body.hash(content)
"""


def test_a_process_that_hashes_is_seen_hashing(tmp_path: Path) -> None:
    """It does nothing else for a second of processor time, so nearly all of what is seen is that."""
    path = tmp_path / "device-0.jsonl"
    subprocess.run([sys.executable, "-c", HASHING, path], cwd=ROOT, check=True)
    found = read_spent(path, 0.0, time.time())
    assert 0.5 < found["hash"] < 1.2
    assert found["hash"] > 0.5 * found.total()


def test_what_was_spent_between_two_moments(tmp_path: Path) -> None:
    """The last rows before each: 5 − 2 and 1 − 0; what the thread itself spent is not the node's."""
    spent = [{"hash": 2.0, "watching": 1.0}, {"hash": 5.0, TRANSPORT: 1.0, "watching": 2.0}, {"hash": 9.0}]
    rows = [json.dumps({"time": 10.0 * place, "spent": each}) for place, each in enumerate(spent, 1)]
    (tmp_path / "edge-0.jsonl").write_text("\n".join(rows), encoding="utf-8")
    assert dict(read_spent(tmp_path / "edge-0.jsonl", 15.0, 25.0)) == {"hash": 3.0, TRANSPORT: 1.0}
