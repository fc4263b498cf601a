"""The run directory: what a run writes, and what is needed to resume it.

Files and bytes only: it knows no model, scheme or clock, and needs no torch. `directory` is the entry point;
`records` is the log and its lines, `plans` the tables, `checkpoint` tensors.
"""

from cfel.runlog.checkpoint import Checkpoint, CheckpointWriter, read_checkpoint, write_checkpoint
from cfel.runlog.directory import (
    SCHEMA,
    Environment,
    FleetDescription,
    PlanTable,
    RunDirectory,
    RunWriter,
    describe_environment,
    holds_run,
    reject_existing_run,
    write_descriptions,
)
from cfel.runlog.records import WALL_CLOCK_FIELDS, RoundRecord

__all__ = [
    "SCHEMA",
    "WALL_CLOCK_FIELDS",
    "Checkpoint",
    "CheckpointWriter",
    "Environment",
    "FleetDescription",
    "PlanTable",
    "RoundRecord",
    "RunDirectory",
    "RunWriter",
    "describe_environment",
    "holds_run",
    "read_checkpoint",
    "reject_existing_run",
    "write_checkpoint",
    "write_descriptions",
]
