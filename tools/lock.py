"""Turns pip's report of what it would install here into requirements with hashes.

    pip install --dry-run --ignore-installed --report report.json -c constraints.txt '.[deploy]'
    python tools/lock.py report.json > lock.txt
    pip install --require-hashes -r lock.txt

The hashes are those of the files that the index offers for this platform.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def make_lines(report: dict[str, Any]) -> Iterator[str]:
    """One requirement per package; cfel itself, which is built here, is left out."""
    for each in report["install"]:
        name, version = each["metadata"]["name"], each["metadata"]["version"]
        if name == "cfel":
            continue
        digest = each["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
        if digest is None:
            sys.exit(f"{name} {version}: the index gives no SHA-256")
        yield f"{name}=={version} --hash=sha256:{digest}"


if __name__ == "__main__":
    sys.stdout.write("".join(f"{line}\n" for line in make_lines(json.loads(Path(sys.argv[1]).read_text()))))
