"""The device table: what is read, and what an error says."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pa_parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfel.errors import FleetFileError
from cfel.system.device_tables import read_devices

HEAD = "mu,alpha,nu,power,cluster"


def written(folder: Path, text: str, encoding: str = "utf-8") -> Path:
    file = folder / "devices.csv"
    file.write_text(text, encoding=encoding, newline="")
    return file


def test_smallest_table(tmp_path: Path) -> None:
    table = read_devices(written(tmp_path, f"{HEAD}\n100,0.5,2,0.1,0\n75.5,1e-1,0,1,0\n"))
    assert {name: column.tolist() for name, column in table.columns.items()} == {
        "mu": [100, 75.5],
        "alpha": [0.5, 0.1],
        "nu": [2, 0],
        "power": [0.1, 1],
        "cluster": [0, 0],
    }
    assert (table.names, table.cluster_labels) == (("0", "1"), ("0",))


def test_every_column(tmp_path: Path) -> None:
    text = (
        "name,cluster,mu,alpha,nu,power,rho_min,rho_max,theta_min,theta_max,battery,colour\n"
        "a,north,1,1,1,1,0.1,0.5,0.01,1,9.5,red\n"
        "b,7,1,1,1,1,0.2,0.2,0.02,0.9,,blue\n"
        "c,north,1,1,1,1,0,1,0,1,0,\n"
    )
    columns, names, labels = read_devices(written(tmp_path, text))
    assert (columns["cluster"].tolist(), labels, names) == ([0, 1, 0], ("north", "7"), ("a", "b", "c"))
    bounds = ("rho_min", "rho_max", "theta_min", "theta_max")
    assert [columns[name][1] for name in bounds] == [0.2, 0.2, 0.02, 0.9]
    assert columns["battery"].tolist() == [9.5, np.inf, 0]
    assert "colour" not in columns


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_mark_blanks_and_empty_lines_are_forgiven(tmp_path: Path, newline: str) -> None:
    lines = ["", " mu , alpha,nu ,power, cluster ", "", " 1 , 2 ,3, 4 , west ", "", "1,2,3,4,west", ""]
    table = read_devices(written(tmp_path, newline.join(lines), encoding="utf-8-sig"))
    assert (table.columns["alpha"].tolist(), table.cluster_labels) == ([2, 2], ("west",))


def test_parquet(tmp_path: Path) -> None:
    columns = {name: [1.0, 2.0] for name in ("mu", "alpha", "nu", "power")}
    file = tmp_path / "devices.parquet"
    pa_parquet.write_table(pa.table({**columns, "cluster": [3, 1], "id": [10, 11]}), file)
    table = read_devices(file)
    assert (table.cluster_labels, table.names, table.columns["mu"].tolist()) == (
        ("3", "1"),
        ("10", "11"),
        [1, 2],
    )


def test_parquet_errors_name_the_row(tmp_path: Path) -> None:
    file = tmp_path / "devices.parquet"
    columns = {name: [1.0, 2.0] for name in ("mu", "alpha", "power")}
    pa_parquet.write_table(pa.table({**columns, "nu": [1.0, None], "cluster": [3, 1]}), file)
    with pytest.raises(FleetFileError, match="row 2, column 'nu': nan"):
        read_devices(file)
    pa_parquet.write_table(pa.table({**columns, "nu": ["1", "2"], "cluster": [3, 1]}), file)
    with pytest.raises(FleetFileError, match=r"column 'nu': .*string"):
        read_devices(file)
    file.write_text("no parquet")
    with pytest.raises(FleetFileError, match=r"devices\.parquet: cannot be read"):
        read_devices(file)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", r"devices\.csv: is empty; must have a heading with the columns mu, alpha, nu, power, cluster"),
        (f"{HEAD}\n", r"devices\.csv: has a heading but no rows"),
        ("mu,alpha,nu,power\n1,1,1,1\n", r"line 1: column 'cluster' is missing \(found: 'mu', 'alpha'"),
        ("mu,alpha,nu,power,clusters\n1,1,1,1,0\n", "column 'cluster' is missing; is 'clusters' meant"),
        ("MU,alpha,nu,power,cluster\n1,1,1,1,0\n", "column 'mu' is missing; is 'MU' meant"),
        ("mu,mu,alpha,nu,power,cluster\n", "line 1: column 'mu' occurs twice"),
        (f"{HEAD}\n1,1,1,1,0\n1,1,nan,1,0\n", r"line 3, column 'nu': 'nan': must be a finite number ≥ 0"),
        (f"{HEAD}\n1,1,1,1,0\n\n1,1,,1,0\n", "line 4, column 'nu': '':"),
        (f"{HEAD}\n1,1,-2.5,1,0\n", r"line 2, column 'nu': '-2\.5':"),
        (f"{HEAD}\n0,1,1,1,0\n", "line 2, column 'mu': '0':"),
        (f"{HEAD}\n1,inf,1,1,0\n", "line 2, column 'alpha': 'inf':"),
        (f"{HEAD}\n1,1,1,1,0\n1,1,1,fast,0\n", r"line 3, column 'power': 'fast': must be a number"),
        (f"{HEAD}\n1,1,1,NA,0\n", "line 2, column 'power': 'NA':"),
        (f"{HEAD}\n1,1,1,1,0\n1,1,1,0\n", r"line 3: has 4 fields, must have 5"),
        (f"{HEAD}\n1,1,1,1, \n", "line 2, column 'cluster': '':"),
        (
            f"id,{HEAD}\na,1,1,1,1,0\nb,1,1,1,1,0\n a,1,1,1,1,0\n",
            r"line 4, column 'id': 'a': must be different",
        ),
        (f"{HEAD},rho_min\n1,1,1,1,0,1.5\n", r"line 2, column 'rho_min': '1\.5':"),
        (
            f"{HEAD},theta_min,theta_max\n1,1,1,1,0,0.5,0.4\n",
            r"line 2, column 'theta_min': '0\.5': must be at most theta_max, which is 0\.4",
        ),
        (f"{HEAD},battery\n1,1,1,1,0,-1\n", "line 2, column 'battery': '-1':"),
    ],
)
def test_errors_say_where_and_what(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(FleetFileError, match=reason):
        read_devices(written(tmp_path, text))


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FleetFileError, match=r"none\.csv: cannot be read"):
        read_devices(tmp_path / "none.csv")


def test_text_that_is_not_text(tmp_path: Path) -> None:
    file = tmp_path / "devices.csv"
    file.write_bytes(f"{HEAD}\n1,1,1,1,".encode() + b"\xff\xfe\n")
    with pytest.raises(FleetFileError, match=r"devices\.csv: cannot be read"):
        read_devices(file)


@given(
    rows=st.lists(
        st.tuples(
            *[st.floats(1e-6, 1e6, allow_nan=False)] * 4,
            st.text("abcXYZ012", min_size=1, max_size=4),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_numbers_survive_unchanged(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[float, float, float, float, str]]
) -> None:
    text = "\n".join([HEAD, *(",".join(map(str, row)) for row in rows)])
    table = read_devices(written(tmp_path_factory.mktemp("table"), text))
    assert table.columns["mu"].tolist() == [row[0] for row in rows]
    assert table.columns["power"].tolist() == [row[3] for row in rows]
    assert [table.cluster_labels[i] for i in table.columns["cluster"]] == [row[4] for row in rows]
    assert list(table.cluster_labels) == list(dict.fromkeys(row[4] for row in rows))


def test_a_million_devices(tmp_path: Path) -> None:
    """Half a second on a quiet machine; the limit leaves room for a busy one."""
    file = written(tmp_path, f"{HEAD}\n" + "100.25,0.5,2.125,0.1,3\n" * 10**6)
    table = read_devices(file)
    assert (len(table.names), table.cluster_labels, table.columns["nu"].sum()) == (10**6, ("3",), 2.125e6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mu;alpha;nu;power;cluster\n1;1;1;1;0\n", "line 1: the columns seem to be separated by semicolons"),
        ("mu\talpha\tnu\tpower\tcluster\n1\t1\t1\t1\t0\n", "line 1: the columns seem to be separated by t"),
        (f'{HEAD}\n"1,5",1,1,1,0\n', "line 2, column 'mu': '1,5': must be a number, with a point as decimal"),
        (f"{HEAD}\n1,5,0,25,1,1,0\n", "line 2: has 7 fields, must have 5"),
        (f"{HEAD},battery_joules\n1,1,1,1,0,9\n", "column 'battery_joules' is unknown; is 'battery' meant?"),
        (f"{HEAD},rho-min\n1,1,1,1,0,0.5\n", "column 'rho-min' is unknown; is 'rho_min' meant?"),
    ],
)
def test_what_spreadsheets_write(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(FleetFileError, match=re.escape(message)):
        read_devices(written(tmp_path, text))
