"""Light by default: what planning imports, which extra brings what, and how a missing one is named."""

import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from cfel.errors import InputError
from cfel.extras import EXTRAS, MissingExtraError, explain_missing_extra

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
IMPORTED_AS = {"grpcio": "grpc", "mlflow-skinny": "mlflow", "pillow": "PIL", "scikit-learn": "sklearn"}
HEAVY = (*EXTRAS, "networkx", "scipy", "pandas", "asyncio.base_events", "rich.progress")


def list_modules(code: str) -> set[str]:
    """The modules that a new process has loaded after some code."""
    script = f"import sys\n{code}\nprint(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines())


def test_importing_cfel_imports_only_what_names_missing_extras() -> None:
    found = {name for name in list_modules("import cfel") if name.startswith(("cfel.", "numpy"))}
    assert found == {"cfel.errors", "cfel.extras", "cfel.wording"}


@pytest.mark.parametrize("package", ["cfel", "cfel.flower"])
def test_names_that_are_imported_on_use_are_those_of_the_package(package: str) -> None:
    """All are listed, as for tab completion, before any is imported."""
    module = import_module(package)
    assert module.__all__ == sorted(name for names in vars(module)["_NAMES"].values() for name in names)
    assert set(dir(module)) >= {*module.__all__, "__doc__"}
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'plann'"):
        module.plann  # noqa: B018


def test_planning_needs_numpy_alone() -> None:
    csv = ROOT / "examples" / "devices.csv"
    code = (
        f"import cfel\ncfel.plan({str(csv)!r}, time_cap=450, energy_cap=300)\ncfel.RoundProblem, cfel.solve"
    )
    assert list_modules(code) & set(HEAVY) == set()


def test_help_loads_no_command() -> None:
    code = "from cfel.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass"
    assert list_modules(code) & {*HEAVY, "numpy"} == set()


def test_every_optional_package_is_in_its_extra() -> None:
    """The extra named for a package is the one in pyproject.toml; nothing there is missing here."""
    tools = {"docs", "dev", "all"}
    brought: dict[str, set[str]] = {}
    for extra, lines in PROJECT["optional-dependencies"].items():
        for line in lines if extra not in tools else ():
            name = re.split(r"[>=\[]", line)[0]
            if name != "cfel":
                brought.setdefault(IMPORTED_AS.get(name, name), set()).add(extra)
    assert set(brought) == set(EXTRAS)
    assert [name for name, extra in EXTRAS.items() if extra not in brought[name]] == []


def test_a_missing_package_is_named_with_its_command() -> None:
    words = re.escape("pip install 'cfel[learn]'")
    with pytest.raises(MissingExtraError, match=words) as found, explain_missing_extra():
        raise ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn")
    assert isinstance(found.value, InputError)
    assert isinstance(found.value, ImportError)


def test_other_missing_modules_are_left_alone() -> None:
    with pytest.raises(ModuleNotFoundError, match="my_module"), explain_missing_extra():
        raise ModuleNotFoundError("No module named 'my_module'", name="my_module")


def test_the_version_has_one_source() -> None:
    import cfel

    assert PROJECT["dynamic"] == ["version"]
    assert f"version: {cfel.__version__}" in (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
