"""Files of the repository outside `docs` that are also pages of the site: changelog, notebooks and others.

On a code host, `[security policy](../SECURITY.md)` leads to the file. On the site, the same link leads to the
page with its content. The pages named here are stubs whose text Sphinx never sees: it reads the file instead.
"""

import os
import re
from pathlib import Path
from typing import Any

from notebook_pages import convert_notebook
from sphinx.application import Sphinx

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "development/changelog.md",
    "CONTRIBUTING.md": "development/contributing.md",
    "SECURITY.md": "development/report.md",
    "results/README.md": "explanations/results.md",
    **{
        f"notebooks/{name}.ipynb": f"notebooks/{name}.md"
        for name in (
            *("first-plan", "first-simulation", "own-model"),
            *("own-algorithm", "budgets-and-energy", "reproduce-a-figure"),
        )
    },
}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^):#\s]+)(#[^)\s]*)?\)")


def replace_source(app: Sphinx, name: str, source: list[str]) -> None:
    """Sphinx calls this with every page before it is parsed."""
    page = DOCS / f"{name}.md"
    stubs = {DOCS / stub: ROOT / file for file, stub in PAGES.items() if stub != "index.md"}
    file = stubs.get(page, page)
    text = source[0] if file == page else _read_page(file)
    if file != page:
        # Otherwise a change of the file would not be seen: the stub has not changed.
        app.env.note_dependency(str(file))
    source[0] = LINK.sub(lambda match: _translate(match, file.parent, page.parent), text)


def _read_page(file: Path) -> str:
    return convert_notebook(file) if file.suffix == ".ipynb" else file.read_text(encoding="utf-8")


def _translate(match: re.Match[str], before: Path, after: Path) -> str:
    """A link of a file in folder `before`, for a page in folder `after`.

    A link to a folder, which is no page, becomes its label.
    """
    mark, label, link, anchor = match.groups(default="")
    target = (before / link).resolve()
    if target.is_dir():
        return label
    place = PAGES.get(os.path.relpath(target, ROOT))
    if place is not None:
        target = DOCS / place
    return f"{mark}[{label}]({os.path.relpath(target, after)}{anchor})"


def setup(app: Sphinx) -> dict[str, Any]:
    """Registers the extension."""
    app.connect("source-read", replace_source)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
