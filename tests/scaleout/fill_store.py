"""Fills a cluster's object store to the last bytes, prints a line, and keeps it full until the input ends."""

import sys

import numpy as np
import ray
from ray.exceptions import ObjectStoreFullError, OutOfDiskError


def main(address: str) -> None:
    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    held = []
    for size in (10 * 2**20, 2**20, 2**18):
        try:
            while True:
                held.append(ray.put(np.zeros(size, dtype=np.uint8)))
        except (ObjectStoreFullError, OutOfDiskError):
            continue
    print(len(held), flush=True)  # noqa: T201
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
