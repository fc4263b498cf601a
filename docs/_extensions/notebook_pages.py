"""A notebook as Markdown: its text, its code, and the outputs that are stored in it.

A notebook is JSON: this needs neither Jupyter nor a kernel, and building the site runs nothing.
"""

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

# The first that an output has is shown.
PICTURES = ("image/svg+xml", "image/png")


def convert_notebook(path: Path) -> str:
    """The page of a notebook."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    parts = [part for cell in cells for part in _convert_cell(cell)]
    # After the title, where to get it.
    parts.insert(1, f"*This page is a notebook: `notebooks/{path.name}`.*")
    return "\n\n".join(parts) + "\n"


def _convert_cell(cell: Mapping[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        title, _, rest = source.partition("\n\n")
        yield from filter(None, (title, rest))
        return
    yield f"```python\n{source}\n```"
    for output in cell["outputs"]:
        yield _convert_output(output)


def _convert_output(output: Mapping[str, Any]) -> str:
    data = output.get("data", {})
    for kind in PICTURES:
        if kind in data:
            content = "".join(data[kind])
            # As an image of its own: the ids of several SVG elements on a page would clash.
            encoded = b64encode(content.encode()).decode() if kind.endswith("xml") else content.strip()
            image = f'<img alt="figure" src="data:{kind};base64,{encoded.replace(chr(10), "")}">'
            return f"```{{raw}} html\n{image}\n```"
    text = "".join(output["text"] if "text" in output else data.get("text/plain", ""))
    return f"```text\n{text.rstrip()}\n```"
