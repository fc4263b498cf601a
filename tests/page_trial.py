"""Plays pages from top to bottom, as a new user would, with exactly the extras that they name.

    python tests/page_trial.py learn,report README.md docs/start.md docs/tutorials/*.md

`make wheel-test` and `make wheel-test-learn` do that in new environments; pages with other extras are left
out. The tests play the same pages where everything is installed. The current folder gets a folder per page.

A block below "Save this as `name`" becomes a file. Lines that begin with `$` are run in `console` blocks, and
in blocks of the README, where the others must appear in the output; `…` stands for anything. `python` blocks
are executed. Others are not played: `sh` is for what needs a real machine.
"""

import io
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SAVED = re.compile(r"[Ss]ave\s+this\s+as\s+`([\w.-]+)`|this\s+as\s+`([\w.-]+)`")
NEEDED = re.compile(r"You\s+need\s+(?:(?!\*\n).)*", re.DOTALL)
EXTRA = re.compile(r"`(learn|report|deploy|tune|ray|hf|onnx)`")
INSTALLED = re.compile(r"'\.\[([\w,]+)\]'")


def find_extras(text: str) -> frozenset[str]:
    """The extras that a page names: where it is installed, or in the line that says what one needs."""
    if installed := INSTALLED.search(text):
        return frozenset(installed[1].split(","))
    needed = NEEDED.search(text.partition("\n## ")[0])
    return frozenset(EXTRA.findall(needed[0]) if needed else ())


def list_blocks(text: str) -> Iterator[tuple[str, str, str | None]]:
    """Language, content, and the file that the paragraph before it names."""
    end = 0
    for match in BLOCK.finditer(text):
        before = text[end : match.start()].rstrip().rpartition("\n\n")[2]
        named = SAVED.search(before)
        yield match[1], match[2], next(filter(None, named.groups())) if named else None
        end = match.end()


class Player:
    """Plays the blocks of a page in the current folder."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self.played = 0

    def play(self, text: str) -> None:
        """Plays all blocks."""
        for language, content, file in list_blocks(text):
            if file is not None:
                Path(file).write_text(content, encoding="utf-8")
            elif language == "console" or (not language and content.startswith("$ ")):
                self._run(content)
            elif language == "python":
                exec(compile(content, "page", "exec"), self.names)  # noqa: S102 — the page is ours
            else:
                continue
            self.played += 1

    def _run(self, content: str) -> None:
        from cfel.cli import main

        for part in re.split(r"^\$ ", content, flags=re.MULTILINE)[1:]:
            command, _, shown = part.replace("\\\n", "").partition("\n")
            program, *arguments = shlex.split(command)
            assert program.removeprefix(".venv/bin/") == "cfel", f"only cfel is run: {command}"
            with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as errors:
                code = main(arguments)
            assert code == 0, (command, errors.getvalue())
            printed = re.sub(r" +$", "", out.getvalue(), flags=re.MULTILINE)
            pattern = re.escape(shown.strip()).replace("…", "(?:.|\n)*")
            assert re.search(pattern, printed), (command, printed)


def play_readme(page: Path) -> Player:
    """Plays the README up to what needs `deploy`; the current folder must have `examples`."""
    player = Player()
    player.play(page.read_text(encoding="utf-8").partition("\n## Deploy")[0])
    assert player.names["plan"].feasible
    assert player.names["result"].records
    assert Path("accuracy.png").read_bytes().startswith(b"\x89PNG")
    return player


def main(extras: str, pages: Sequence[str]) -> None:
    """Plays those pages that need exactly these extras, each in a folder of its own."""
    os.environ["COLUMNS"] = "80"
    root, wanted = Path.cwd(), frozenset(filter(None, extras.split(",")))
    for page in [Path(each).absolute() for each in pages]:
        readme, text = page.name == "README.md", page.read_text(encoding="utf-8")
        if (frozenset(("learn", "report")) if readme else find_extras(text)) != wanted:
            continue
        folder = root / page.stem
        folder.mkdir()
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        sys.stdout.write(f"{page.name}, with {extras or 'no extras'}\n")
        if readme:
            shutil.copytree(page.parent / "examples", "examples")
            play_readme(page)
        else:
            player = Player()
            player.play(text)
            assert player.played, f"{page}: nothing to play"
        sys.path.remove(str(folder))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
