"""The API page, made from the docstrings of the face: `uv run python tools/api.py [FOLDER]` writes
FOLDER/workbench.html.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pdoc


def write(folder: Path) -> Path:
    """Write the page of `import workbench as wb` and its search index into `folder`; returns the
    page.
    """
    pdoc.render.configure(docformat="google", show_source=False)
    pdoc.pdoc("workbench", "!workbench.", output_directory=folder)
    return folder / "workbench.html"


if __name__ == "__main__":
    print(write(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/api")))
