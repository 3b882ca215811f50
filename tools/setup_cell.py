"""Write the set-up cell and the badges for Colab and Kaggle into the five notebooks and the
lessons, with the repository's address as it stands in pyproject.toml.

    python tools/setup_cell.py

Run it after a change of `Repository` in `[project.urls]`, the one place where the address is
edited: cells and badges get it from there (tests/commands/test_hosted.py holds that they agree).
"""

from __future__ import annotations

import base64
import json
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).parents[1]
METADATA = {
    "_kg_hide-input": True,
    "cellView": "form",
    "jupyter": {"source_hidden": True},
    "tags": ["setup"],
}
CELL = """\
# @title Set-up on Colab and Kaggle; does nothing anywhere else
runs_in = "/content/drive/MyDrive/grpo-workbench"  # @param {type:"string"}
import glob, os, runpy, sys, urllib.request
if os.environ.keys() & {"COLAB_RELEASE_TAG", "KAGGLE_KERNEL_RUN_TYPE"}:
    places = [*sys.path, "grpo-workbench", runs_in, *("/kaggle/input" + n * "/*" for n in range(1, 5))]
    files = [file for place in places for file in glob.glob(place + "/workbench/commands/hosted.py")]
    address = "@ADDRESS@"  # not found? switch Internet on, or upload a copy as the folder grpo-workbench
    runpy.run_path((files or urllib.request.urlretrieve(address + "/raw/main/workbench/commands/hosted.py"))[0])["begin"](runs_in, address)
"""  # noqa: E501

# Opens the notebook that follows it: a file of the repository, as the host reads it.
BADGES = {
    "Colab": "https://colab.research.google.com/github{path}/blob/main/{file}",
    "Kaggle": "https://kaggle.com/kernels/welcome?src={address}/blob/main/{file}",
}


def address(root: Path = ROOT) -> str:
    """The repository's address."""
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"][
        "Repository"
    ]


def cell(stem: str, root: Path = ROOT) -> dict[str, Any]:
    """The set-up cell of the notebook `stem`."""
    return {
        "cell_type": "code",
        "execution_count": None,
        "id": f"{stem[:2]}-00",
        "metadata": METADATA,
        "outputs": [],
        "source": CELL.replace("@ADDRESS@", address(root)).rstrip("\n").splitlines(keepends=True),
    }


def with_badges(title: dict[str, Any], file: str, root: Path = ROOT) -> dict[str, Any]:
    """The title cell of the notebook `file` (a path in the repository), its badges under the title.

    Their pictures are attached to the cell: they are seen without a network and in a copy.
    """
    heading, *lines = (line for line in title["source"] if not line.startswith("[![Open in"))
    pictures, badges = {}, []
    for name, link in BADGES.items():
        picture = f"open_in_{name.lower()}.png"
        data = (ROOT / "docs" / "images" / picture).read_bytes()
        pictures[picture] = {"image/png": base64.b64encode(data).decode()}
        to = link.format(path=urlsplit(address(root)).path, address=address(root), file=file)
        badges.append(f"[![Open in {name}](attachment:{picture})]({to})")
    if lines[:2] == ["\n", "\n"]:  # around the ones that were there
        del lines[0]
    source = [heading, "\n", " ".join(badges) + "\n", *lines]
    return title | {"attachments": pictures, "source": source}


def write(root: Path = ROOT) -> None:
    """Put the cell under each notebook's title, in place of the one that is there, and the badges
    into the title.
    """
    for file in sorted((root / "notebooks").rglob("*.ipynb")):
        notebook = json.loads(file.read_text(encoding="utf-8"))
        title, *rest = notebook["cells"]
        rest = [each for each in rest if "setup" not in each["metadata"].get("tags", [])]
        title = with_badges(title, file.relative_to(root).as_posix(), root)
        notebook["cells"] = [title, cell(file.stem, root), *rest]
        file.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write()
