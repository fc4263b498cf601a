"""Device tables, changed at random: `cfel plan` plans for them or rejects them with one message."""

import io
import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from tests.fuzz.directories import call_command
from tests.fuzz.mutations import change_bytes, change_document, draw_nasty

DEVICES = Path(__file__).parents[2] / "examples" / "devices.csv"
_OPTIONS = ("--time-cap", "450", "--energy-cap", "900")


def make_case(draw: random.Random) -> tuple[str, bytes]:
    """A table's name and content."""
    kind = draw.choice(("csv", "json", "parquet"))
    table = pa_csv.read_csv(DEVICES)
    if kind == "csv":
        content = DEVICES.read_bytes()
        if draw.random() < 0.5:
            cell = draw.choice(content.split(b",")[6:])
            content = content.replace(cell, str(draw_nasty(draw))[:5000].encode(), 1)
    elif kind == "json":
        document = {
            "tau": 5,
            "sigma2": 1.0,
            "g2": 1.0,
            "devices": table.to_pylist(),
        }
        content = json.dumps(change_document(draw, document)).encode()
    else:
        file = io.BytesIO()
        name = draw.choice(table.column_names)
        if draw.random() < 0.5:
            value = draw_nasty(draw)
            place = table.column_names.index(name)
            values = [value if isinstance(value, str | int | float) else None] * table.num_rows
            try:
                table = table.set_column(place, name, pa.array(values))
            except (pa.ArrowException, OverflowError, TypeError):
                table = table.drop_columns([name])
        elif draw.random() < 0.2:
            table = pa.table({each: pa.repeat(table[each][0], 3 * 10**6) for each in table.column_names})
        pq.write_table(table, file, compression="zstd")
        content = file.getvalue()
    return f"devices.{kind}", change_bytes(draw, content) if draw.random() < 0.4 else content


def try_case(place: Path, name: str, content: bytes) -> None:
    """Plans for the table; raises what is not caught."""
    place.mkdir(exist_ok=True)
    (place / name).write_bytes(content)
    for more in ([], ["--json"]):
        call_command("plan", place / name, *_OPTIONS, *more)
