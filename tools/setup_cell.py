"""Write the set-up cell into the five notebooks and the lessons, with the repository's address as it stands in pyproject.toml.

    python tools/setup_cell.py

Run it after a change of `Repository` in `[project.urls]`, the one place where the address is edited: the cells and the
README get it from there (tests/test_hosted.py holds that they agree).
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).parents[1]
METADATA = {"_kg_hide-input": True, "cellView": "form", "jupyter": {"source_hidden": True}, "tags": ["setup"]}
CELL = """\
# @title Set-up on Colab and Kaggle; does nothing anywhere else
runs_in = "/content/drive/MyDrive/grpo-workbench"  # @param {type:"string"}
import contextlib, glob, importlib.util, os, subprocess, sys

if os.environ.keys() & {"COLAB_RELEASE_TAG", "KAGGLE_KERNEL_RUN_TYPE"}:
    if not importlib.util.find_spec("workbench"):
        address, file, here = "@ADDRESS@", "/workbench/hosted.py", os.path.abspath("grpo-workbench")
        attached = [path for n in range(1, 5) for path in glob.glob("/kaggle/input" + n * "/*" + file)]
        if "/drive/" in runs_in and not (attached or os.path.exists(here + file)):
            with contextlib.suppress(Exception):  # a copy may be in it; why it is not mounted, set_up says
                importlib.import_module("google.colab.drive").mount(runs_in.partition("/drive/")[0] + "/drive")
        found = [path for path in (here + file, runs_in + file, *attached) if os.path.exists(path)] or [here + file]
        said = "OWNER is a placeholder, the repository has no address yet"
        if not os.path.exists(found[0]) and "/OWNER/" not in address:
            said = subprocess.run(["git", "clone", "--depth=1", address, here], capture_output=True, text=True).stderr
        if not os.path.exists(found[0]):
            rule = f"it is in {here}, in {runs_in}, in a Kaggle dataset, or can be cloned"
            remedy = "switch Internet on, or upload a copy of the repository to one of these"
            raise RuntimeError(f"{address}: {said}\\n  rule:   {rule}\\n  remedy: {remedy}")
        sys.path.insert(0, found[0].removesuffix(file))
    from workbench.hosted import set_up

    set_up(runs_in)
"""


def address(root: Path = ROOT) -> str:
    """The repository's address."""
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]


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


def write(root: Path = ROOT) -> None:
    """Put the cell under each notebook's title, in place of the one that is there, and the address into the README."""
    before = set()
    for file in sorted((root / "notebooks").rglob("*.ipynb")):
        notebook = json.loads(file.read_text(encoding="utf-8"))
        title, *rest = notebook["cells"]
        for each in rest:
            if "setup" in each["metadata"].get("tags", []):
                before |= set(re.findall(r'address, .*? = "(.*?)"', "".join(each["source"])))
        rest = [each for each in rest if "setup" not in each["metadata"].get("tags", [])]
        notebook["cells"] = [title, cell(file.stem, root), *rest]
        file.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    readme = root / "README.md"
    text = readme.read_text(encoding="utf-8")
    for old in before:
        # A link that opens a notebook in Colab has only the path of it.
        text = text.replace(old, address(root)).replace(urlsplit(old).path, urlsplit(address(root)).path)
    readme.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
