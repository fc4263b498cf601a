"""What `cfel plan` rejects: the message names the file, the place, the value and what is allowed."""

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pa_parquet
import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import Run, Write

HEAD = "mu,alpha,nu,power,cluster"
DEVICE: dict[str, Any] = {"mu": 1, "alpha": 1, "nu": 1, "power": 1, "cluster": 0}
COLUMNS: dict[str, Any] = {key: [value] * 2 for key, value in DEVICE.items()}


def rejected(run: Run, file: Path, *options: object) -> str:
    """The message without the folder and the word in front; nothing may be on standard output."""
    answer = run("plan", file, *options)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1
    return answer.err.removeprefix("error: ").replace(f"{file.parent}/", "").strip()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "mu,alpha,nu,power\n1,1,1,1\n",
            "f.csv, line 1: column 'cluster' is missing (found: 'mu', 'alpha', 'nu', 'power')",
        ),
        (
            "mu,alfa,nu,power,cluster\n1,1,1,1,0\n",
            "f.csv, line 1: column 'alpha' is missing; is 'alfa' meant? "
            "(found: 'mu', 'alfa', 'nu', 'power', 'cluster')",
        ),
        (
            f"{HEAD}\n1,1,1,1,0\n1,NaN,1,1,0\n",
            "f.csv, line 3, column 'alpha': 'NaN': must be a finite number ≥ 0",
        ),
        (f"{HEAD}\n1,1,-3,1,0\n", "f.csv, line 2, column 'nu': '-3': must be a finite number ≥ 0"),
        (f"{HEAD}\n-1,1,1,1,0\n", "f.csv, line 2, column 'mu': '-1': must be a finite number > 0"),
        (f"{HEAD}\n1,1,1,fast,0\n", "f.csv, line 2, column 'power': 'fast': must be a number"),
        (f"{HEAD}\n1,1,1,1,\n", "f.csv, line 2, column 'cluster': '': must be a number or a name"),
        (f"{HEAD}\n", "f.csv: has a heading but no rows; must have at least 1"),
        ("", "f.csv: is empty; must have a heading with the columns mu, alpha, nu, power, cluster"),
        (
            f"{HEAD},rho_min,rho_max\n1,1,1,1,0,0.9,0.2\n",
            "f.csv, line 2, column 'rho_min': '0.9': must be at most rho_max, which is 0.2 there",
        ),
        (
            f"id,{HEAD}\na,1,1,1,1,0\na,1,1,1,1,0\n",
            "f.csv, line 3, column 'id': 'a': must be different for every device, it occurs twice",
        ),
    ],
)
def test_tables(run: Run, write: Write, text: str, message: str) -> None:
    assert rejected(run, write("f.csv", text)) == message


def list_of(**changed: Any) -> dict[str, Any]:
    """A document whose second device has something changed."""
    return {"devices": [DEVICE, {**DEVICE, **changed}]}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (list_of(mu=-1), "mu[1] = -1.0: must be a finite number > 0"),
        (list_of(nu=float("nan")), "nu[1] = nan: must be a finite number ≥ 0"),
        (list_of(mu="fast"), "devices[1].mu = 'fast': must be a number"),
        (list_of(mu="3"), "devices[1].mu = '3': must be a number"),
        (list_of(mu=True), "devices[1].mu = True: must be a number"),
        (list_of(mu=None), "devices[1].mu = None: must be a number"),
        (list_of(mu=10**400), f"mu[1] = {10**199}…: must be a number"),
        (list_of(cluster=-1), "devices[1].cluster = -1: must be a whole number ≥ 0 or a name"),
        (
            list_of(cluster=10**9),
            "devices[1].cluster = 1000000000: clusters are numbered from 0 and below the number of devices, "
            "2; put it in quotes if it is a name",
        ),
        (list_of(cluster=0.5), "devices[1].cluster = 0.5: must be a whole number ≥ 0 or a name"),
        (
            {"devices": {**COLUMNS, "cluster": ["a", None]}},
            "devices[1].cluster = None: must be a whole number ≥ 0 or a name",
        ),
        (
            {**list_of(cluster=1), "time_cap": [5.0]},
            "cluster[1] = 1: unknown cluster (allowed: 0 to 0, as time_cap has 1 entries)",
        ),
        (
            {**list_of(), "rho_min": 0.8, "rho_max": 0.2},
            "rho_min[0] = 0.8: must be ≤ rho_max, which is 0.2",
        ),
        (
            {"devices": [{**DEVICE, "id": "a"}, {**DEVICE, "id": "a"}]},
            "devices[1].id = 'a': must be different for every device, it occurs twice",
        ),
        (list_of(battery=5), "devices[0].battery: is missing"),
        ({"devices": [5]}, "devices: must be a list of objects or an object of columns"),
        ({}, "devices: must be a list of objects or an object of columns"),
        ({"devices": []}, "devices.mu: has 0 entries, must have at least 1"),
        ({"devices": {**COLUMNS, "nu": [1]}}, "devices.nu: has 1 entries, must have as many as mu, 2"),
        ({"devices": {**COLUMNS, "id": ["a"]}}, "devices.id: has 1 entries, must have as many as mu, 2"),
        ({"devices": {**COLUMNS, "id": "ab"}}, "devices.id: is missing or not a list"),
        ({"devices": {**COLUMNS, "battery": 5}}, "devices.battery: is missing or not a list"),
        ({"devices": {"mu": [1]}}, "devices.alpha: is missing or not a list"),
        ({**list_of(), "time_cap": "soon"}, "time_cap = 'soon': must be a number"),
        ({**list_of(), "time_cap": True}, "time_cap = True: must be a number"),
        ({**list_of(), "energy_cap": [1]}, "energy_cap = [1]: must be a number"),
        ({**list_of(), "tau": 2.5}, "tau = 2.5: must be a whole number ≥ 1"),
        (
            {**list_of(), "on_unreachable": "strech"},
            "on_unreachable: unknown 'strech'; did you mean 'stretch'? (allowed: minimum, stretch)",
        ),
        ([1], "must be an object with `devices`, got a list"),
    ],
)
def test_documents(run: Run, write: Write, document: object, message: str) -> None:
    assert rejected(run, write("f.json", json.dumps(document))) == f"f.json: {message}"


def test_unknown_keys_name_the_nearest(run: Run, write: Write) -> None:
    message = rejected(run, write("f.json", json.dumps({**list_of(), "time_cp": 5})))
    assert message.startswith("f.json: top level: unknown 'time_cp'; did you mean 'time_cap'? (allowed: ")
    message = rejected(run, write("f.json", json.dumps({"devices": {**COLUMNS, "powr": [1, 1]}})))
    assert message.startswith("f.json: devices: unknown 'powr'; did you mean 'power'? (allowed: alpha, ")


def test_parquet(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "f.parquet"
    pa_parquet.write_table(pa.table({**COLUMNS, "nu": [1.0, float("nan")]}), file)
    assert rejected(run, file) == "f.parquet, row 2, column 'nu': nan: must be a finite number ≥ 0"
    pa_parquet.write_table(pa.table({key: COLUMNS[key] for key in ("mu", "nu", "power", "cluster")}), file)
    assert rejected(run, file).startswith("f.parquet: column 'alpha' is missing")
    pa_parquet.write_table(pa.table(COLUMNS).slice(0, 0), file)
    assert rejected(run, file) == "f.parquet: has a heading but no rows; must have at least 1"


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000])
def test_bad_json(run: Run, write: Write, text: str) -> None:
    assert rejected(run, write("f.json", text)).startswith("f.json: cannot be read: ")


@pytest.mark.parametrize("name", ["f.csv", "f.json", "f.parquet", "folder"])
def test_no_file_or_a_folder(run: Run, tmp_path: Path, name: str) -> None:
    assert rejected(run, tmp_path / name).startswith(f"{name}: cannot be read: ")
    (tmp_path / name).mkdir()
    message = rejected(run, tmp_path / name)
    assert message.startswith(f"{name}: cannot be read: ")
    assert "directory" in message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--time-budget", 9], "--rounds: required with --time-budget or --energy-budget"),
        (["--rounds", 9], "--rounds: only with --time-budget or --energy-budget"),
        (["--edge-rounds", 9], "--edge-rounds: only with --time-budget or --energy-budget"),
        (
            ["--time-budget", 9, "--rounds", 2, "--time-cap", 3],
            "--time-cap: give a cap for the round or a budget for the run, not both",
        ),
        (
            ["--energy-budget", 9, "--rounds", 2, "--energy-cap", 3],
            "--energy-cap: give a cap for the round or a budget for the run, not both",
        ),
        (["--start", 0.5], "--start: only with --method alternating"),
        (["--rho-min", 2], "--rho-min = 2.0: must be a finite number ≥ 0 and ≤ 1"),
        (["--sigma2", -1], "--sigma2 = -1.0: must be a finite number ≥ 0"),
    ],
)
def test_options_that_do_not_go(run: Run, one: Path, options: list[object], message: str) -> None:
    assert rejected(run, one, *options) == message


def test_an_experiment_in_place_of_a_fleet(run: Run, write: Write) -> None:
    message = rejected(run, write("f.toml", "seed = 1"))
    assert message == "f.toml: is not a table of devices: must be .csv, .parquet or .json"


def test_an_option_against_the_file(run: Run, write: Write) -> None:
    """What is wrong is the option, for the second device; what the file says is not blamed."""
    file = write("f.csv", f"{HEAD},rho_max\n1,1,1,1,0,1\n1,1,1,1,0,0.2\n")
    assert (
        rejected(run, file, "--rho-min", 0.5) == "--rho-min = 0.5: must be ≤ rho_max, which is 0.2 (device 1)"
    )
    negative = write("g.json", json.dumps({**list_of(), "g2": -1}))
    assert rejected(run, negative, "--sigma2", 1) == "g.json: g2 = -1: must be a finite number ≥ 0"


def test_clusters_beyond_the_devices(run: Run, write: Write) -> None:
    """Named, or with a cap of its own, a cluster may have any number; each cap is its cluster's."""
    named = write("f.json", json.dumps(list_of(cluster=str(10**9))))
    assert run("plan", named, "--json").document["time_cap"] == [None, None]
    capped = write("g.json", json.dumps({**list_of(cluster=3), "time_cap": [5, 6, 7, 8]}))
    assert run("plan", capped, "--json").document["time_cap"] == [5, 6, 7, 8]


def test_a_table_that_cannot_be_written(run: Run, one: Path, tmp_path: Path) -> None:
    assert rejected(run, one, "--csv", tmp_path).startswith(f"{tmp_path}: cannot be written: ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tau", "2.5"], "argument --tau: '2.5': must be a whole number ≥ 1"),
        (["--tau", "0"], "argument --tau: '0': must be a whole number ≥ 1"),
        (["--rows", "-1"], "argument --rows: '-1': must be a whole number ≥ 0"),
        (["--edge-rounds", "0"], "argument --edge-rounds: '0': must be a whole number ≥ 1"),
        (["--time-cap", "soon"], "argument --time-cap: 'soon': must be a number, or inf for no limit"),
        (["--time-cap", "nan"], "argument --time-cap: 'nan': must be a number, or inf for no limit"),
        (["--time-budget", "-5"], "argument --time-budget: '-5': must be a number > 0, or inf for no limit"),
        (["--start", "0"], "argument --start: '0': must be a number > 0 and ≤ 1"),
        (["--start", "1.5"], "argument --start: '1.5': must be a number > 0 and ≤ 1"),
        (["--method", "best"], "argument --method: invalid choice: 'best'"),
        (["--colour"], "unrecognized arguments: --colour"),
    ],
)
def test_wrong_usage(run: Run, one: Path, options: list[str], message: str) -> None:
    answer = run("plan", one, *options)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err


def test_a_pipe_is_not_waited_for(run: Run, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "devices.csv")
    assert rejected(run, tmp_path / "devices.csv") == "devices.csv: cannot be read: it is not a regular file"


@pytest.mark.long
def test_a_small_table_that_would_take_gigabytes(run: Run, tmp_path: Path) -> None:
    """Three million equal devices, and a few with names of a megabyte."""
    columns = {name: pa.repeat(1.0, 3_000_000) for name in ("mu", "alpha", "nu", "power")}
    pq.write_table(pa.table({**columns, "cluster": pa.repeat("a", 3_000_000)}), tmp_path / "d.parquet")
    assert "d.parquet: its 3,000,000 rows would take more than" in rejected(run, tmp_path / "d.parquet")
    columns = {name: pa.repeat(1.0, 1000) for name in ("mu", "alpha", "nu", "power")}
    pq.write_table(pa.table({**columns, "cluster": pa.repeat("a" * 10**6, 1000)}), tmp_path / "d.parquet")
    assert "column 'cluster': has a text of more than 10,000 bytes" in rejected(run, tmp_path / "d.parquet")


def test_a_value_without_end_is_not_shown_in_full(run: Run, write: Write) -> None:
    file = write("f.json", json.dumps({"tau": 5, "devices": [{**DEVICE, "mu": "x" * 5000}]}))
    message = rejected(run, file)
    assert len(message) < 500
    assert message.endswith("…: must be a number")


def test_names_do_not_draw_on_the_terminal(run: Run, write: Write) -> None:
    table = write("f.csv", f"id,{HEAD}\n\x1b[31mred,1,1,1,1,0\n")
    assert rejected(run, table) == r"f.csv: the name '\x1b[31mred' must not contain control characters"
    named = write("f.json", json.dumps({"tau": 5, "devices": [{**DEVICE, "cluster": "a\u202eb"}]}))
    assert rejected(run, named) == r"f.json: the name 'a\u202eb' must not contain control characters"
