"""CSV without pyarrow, Parquet with it, and a message for those who lack it."""

import sys
from pathlib import Path

import numpy as np
import pytest

from cfel.extras import MissingExtraError
from cfel.system.tables import CHUNK, number_texts, read_table


def test_columns_of_a_csv_longer_than_one_chunk(tmp_path: Path) -> None:
    file = tmp_path / "long.csv"
    rows = CHUNK + 3
    file.write_text("x, name ,other\n" + "".join(f"{row}, n{row % 2} ,\n" for row in range(rows)))
    table = read_table(file, ("x",), ("x",), ("name",))
    assert table.rows == rows
    assert np.array_equal(table.floats("x"), np.arange(rows))
    codes, labels = number_texts(table.texts("name"))
    assert labels == ("n0", "n1")
    assert np.array_equal(codes, np.arange(rows) % 2)
    assert not table.has("other")


def test_parquet_names_the_extra_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "devices.parquet"
    file.write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"pyarrow.*pip install 'cfel\[learn\]'"):
        read_table(file, ("x",), ("x",), ())
