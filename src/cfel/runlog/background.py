"""CheckpointWriter: writes checkpoints while training continues.

One thread and at most one checkpoint in flight, so memory holds one snapshot and never a queue of them. If a
write fails in the thread, the next call raises the error. Hashing, writing and syncing all release the
interpreter lock.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from cfel.runlog.checkpoint import SHARD_BYTES, Checkpoint, write_checkpoint


class CheckpointWriter:
    """Writes checkpoints into one directory.

    Args:
        directory: where checkpoints are kept; it exists.
        shard_bytes: size at which a file is closed.
    """

    def __init__(self, directory: Path, shard_bytes: int = SHARD_BYTES) -> None:
        self._directory = directory
        self._shard_bytes = shard_bytes
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None

    def submit(self, checkpoint: Checkpoint, *, copy: bool = True) -> None:
        """Starts a write and returns; waits first for the previous write to end.

        Args:
            checkpoint: the snapshot.
            copy: copy the tensors first (about 0.3 s per GB), so that training may change them in place. With
                False the caller must not change them before `wait` returns.

        Raises:
            StorageError: the previous write failed; this one was not started.
        """
        self.wait()
        snapshot = checkpoint.copy() if copy else checkpoint
        self._pending = self._thread.submit(write_checkpoint, self._directory, snapshot, self._shard_bytes)

    def wait(self) -> None:
        """Returns when nothing is in flight.

        Raises:
            StorageError: the write failed; raised once, and the previous checkpoint is intact.
        """
        # Forgotten before it is raised: a failed write must not block the writes after it.
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Waits, ends the thread and raises a failed write, as `wait` does."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()
