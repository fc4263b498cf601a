"""CheckpointWriter: writes checkpoints while training goes on.

One thread, at most one checkpoint in flight, so memory holds one snapshot and never a queue of them. A write
that failed is not lost in the thread: the next call raises it. Hashing, writing and syncing all release the
interpreter lock.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from cfel.runlog.checkpoint import SHARD_BYTES, Checkpoint, write_checkpoint


class CheckpointWriter:
    """Writes into one directory.

    Args:
        directory: where checkpoints are kept; it exists.
        shard_bytes: size at which a file is closed.
    """

    def __init__(self, directory: Path, shard_bytes: int = SHARD_BYTES) -> None:
        self._directory = directory
        self._shard_bytes = shard_bytes
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether a write is under way; `submit` would wait for it."""
        return self._pending is not None and not self._pending.done()

    def submit(self, checkpoint: Checkpoint, *, copy: bool = True) -> None:
        """Starts writing and returns; waits first for the write before it, if that is still under way.

        Args:
            checkpoint: the snapshot.
            copy: copy the tensors first (some 0.3 s per GB), so that training may change them in place. False
                writes the very arrays: whoever passes it promises not to change them before `wait` returns.

        Raises:
            StorageError: the write before this one failed; this one was not started.
        """
        self.wait()
        snapshot = checkpoint.copied() if copy else checkpoint
        self._pending = self._thread.submit(write_checkpoint, self._directory, snapshot, self._shard_bytes)

    def wait(self) -> None:
        """Returns when nothing is in flight.

        Raises:
            StorageError: the write failed; it is reported once, and the checkpoint before it is intact.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Waits, lets the thread end and reports a failed write, as `wait` does."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()
