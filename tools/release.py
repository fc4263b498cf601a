"""Checks a release: `make release` calls it before and after the build.

    python tools/release.py version         # do all files name the same version?
    python tools/release.py files dist      # are wheel and sdist complete, and what is left to do?

Needs nothing but the standard library.
"""

import email
import hashlib
import re
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email.message import Message
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATTERNS = {
    "src/cfel/__init__.py": re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE),
    "CITATION.cff": re.compile(r"^version: \"?([^\"\s]+)\"?$", re.MULTILINE),
    "CHANGELOG.md": re.compile(r"^## (\S+)", re.MULTILINE),
}
"""Where the version stands; pyproject.toml takes it from the package."""
EXPECTED_IN_WHEEL = ("cfel/__init__.py", "cfel/py.typed", "cfel/experiments/table1-cifar10.toml")
EXPECTED_IN_SDIST = ("pyproject.toml", "README.md", "LICENSE", "src/cfel/__init__.py", "tests/conftest.py")
EXPECTED_IN_METADATA = (
    "Summary",
    "Author",
    "License-Expression",
    "Requires-Python",
    "Keywords",
    "Classifier",
)
MOST_BYTES = 20 * 2**20
"""A larger file has something in it that does not belong there."""


def read_versions(root: Path = ROOT) -> dict[str, str]:
    """The version that each file names."""
    return {file: _find(pattern, root / file) for file, pattern in PATTERNS.items()}


def _find(pattern: re.Pattern[str], path: Path) -> str:
    found = pattern.search(path.read_text(encoding="utf-8"))
    if found is None:
        raise SystemExit(f"{path.name}: no version found")
    return found[1]


def check_version(root: Path = ROOT) -> str:
    """The version, if all files agree."""
    versions = read_versions(root)
    if len(set(versions.values())) != 1:
        raise SystemExit("the versions differ: " + ", ".join(f"{file} {v}" for file, v in versions.items()))
    return versions["CHANGELOG.md"]


def find_faults(folder: Path, version: str) -> Iterator[str]:
    """What is wrong with the files of a release, one sentence each."""
    wheel = folder / f"cfel-{version}-py3-none-any.whl"
    sdist = folder / f"cfel-{version}.tar.gz"
    foreign = sorted(path.name for path in folder.iterdir() if path not in (wheel, sdist))
    if foreign:
        yield f"{folder} also holds {', '.join(foreign)}"
    for path in (wheel, sdist):
        if not path.is_file():
            yield f"{path.name} is missing"
        elif path.stat().st_size > MOST_BYTES:
            yield f"{path.name} has {path.stat().st_size / 2**20:.0f} MiB"
    if wheel.is_file():
        yield from _find_faults_of_wheel(wheel, version)
    if sdist.is_file():
        yield from _find_faults_of_sdist(sdist, version)


def _find_faults_of_wheel(wheel: Path, version: str) -> Iterator[str]:
    information = f"cfel-{version}.dist-info"
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
        metadata = opened.read(f"{information}/METADATA").decode()
    foreign = [name for name in names if not name.startswith(("cfel/", f"{information}/"))]
    if foreign:
        yield f"{wheel.name} holds {foreign[0]}, which is not part of the package"
    expected = (*EXPECTED_IN_WHEEL, f"{information}/entry_points.txt", f"{information}/licenses/LICENSE")
    yield from (f"{wheel.name} lacks {name}" for name in expected if name not in names)
    yield from (f"{wheel.name}: {fault}" for fault in _find_faults_of_metadata(metadata, version))


def _find_faults_of_sdist(sdist: Path, version: str) -> Iterator[str]:
    top = f"cfel-{version}"
    with tarfile.open(sdist) as opened:
        names = opened.getnames()
        packed = opened.extractfile(f"{top}/PKG-INFO")
        metadata = packed.read().decode() if packed else ""
    yield from (f"{sdist.name} lacks {name}" for name in EXPECTED_IN_SDIST if f"{top}/{name}" not in names)
    yield from (f"{sdist.name}: {fault}" for fault in _find_faults_of_metadata(metadata, version))


def _find_faults_of_metadata(text: str, version: str) -> Iterator[str]:
    metadata: Message = email.message_from_string(text)
    if (metadata["Name"], metadata["Version"]) != ("cfel", version):
        yield f"its metadata is of {metadata['Name']} {metadata['Version']}"
    yield from (f"its metadata has no {field}" for field in EXPECTED_IN_METADATA if not metadata[field])
    if metadata["Description-Content-Type"] != "text/markdown":
        yield f"its description is {metadata['Description-Content-Type']}, not text/markdown"
    if not str(metadata.get_payload()).strip():
        yield "its description is empty"


def list_steps(version: str, root: Path = ROOT) -> Iterator[str]:
    """What a person still has to do."""
    heading = re.search(r"^## .*$", (root / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    if heading is None or not re.search(r"\d{4}-\d{2}-\d{2}", heading[0]):
        yield f"CHANGELOG.md: write the date beside {version}, commit, and run `make release` again"
    yield "run the slow tests: make test-long test-faults chaos test-flower test-trackers wheel-test-learn"
    yield f"tag the commit: git tag -a v{version} -m 'cfel {version}' && git push origin v{version}"
    yield "upload: pipx run twine upload dist/*"
    yield "publish the site: make docs, then copy build/docs"
    yield "begin the next version: __version__, CITATION.cff and a new heading in CHANGELOG.md"


def main(arguments: list[str]) -> None:
    """Checks the version, or the files in a folder."""
    version = check_version()
    if arguments[0] == "version":
        print(f"version {version} in {', '.join(PATTERNS)}")
        return
    folder = Path(arguments[1])
    faults = list(find_faults(folder, version))
    if faults:
        raise SystemExit("\n".join(faults))
    for path in sorted(folder.iterdir()):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        print(f"{path}  {path.stat().st_size / 1024:,.0f} KiB  sha256 {digest}")
    print(f"\ncfel {version} is built and checked. Left to do by hand:")
    for number, step in enumerate(list_steps(version), 1):
        print(f"  {number}. {step}")


if __name__ == "__main__":
    main(sys.argv[1:])
