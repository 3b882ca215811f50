"""What MkDocs is told beyond mkdocs.yml: README.md is the first page, a link to a file of the
repository goes to its address, and the names on the API page are followed by their docstrings.
"""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#]+)")
_EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.M)
_NAMES = re.compile(r"^`wb\..*$", re.M)


def _literal(module: str, name: str) -> dict[str, Any]:
    # Read without an import.
    for node in ast.parse((ROOT / "workbench" / module).read_text(encoding="utf-8")).body:
        targets = getattr(node, "targets", [getattr(node, "target", node)])
        if isinstance(node, ast.Assign | ast.AnnAssign) and ast.unparse(targets[0]) == name:
            return ast.literal_eval(node.value or ast.Constant(None))
    raise LookupError(f"workbench/{module} has no {name}")


def face() -> dict[str, str]:
    """Each public name, `rewards.Endpoint` too, and the module that it lives in."""
    inspection = _literal("inspection/__init__.py", "_VIEWS")
    rewards = _literal("rewards/__init__.py", "_LIBRARY")
    found = {
        **_literal("__init__.py", "FACE"),
        **{f"rewards.{name}": module for module in rewards for name in rewards[module]},
        **{f"inspection.{name}": module for name, module in inspection.items()},
    }
    for instrument, sockets in _literal("base/instruments.py", "TABLE").items():
        for socket, part in (("face", ""), ("rewards", "rewards."), ("inspection", "inspection.")):
            for name, module in sockets.get(socket, {}).items():
                found[f"{part}{name}"] = f"instruments.{instrument}.{module}"
    return found


def from_the_site(text: str, folder: Path) -> str:
    """A page's text, whose relative links begin at `folder`, with each of them as the site has
    it: a page or picture of docs/, or an address in the repository.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    address = f"{project['urls']['Repository']}/blob/main"

    def target(link: re.Match[str]) -> str:
        path = (folder / link[1]).resolve().relative_to(ROOT)
        if path.parts[0] == "docs":
            return path.relative_to("docs").as_posix()
        return "index.md" if path == Path("README.md") else f"{address}/{path.as_posix()}"

    return _LINK.sub(target, text)


def documented(text: str) -> str:
    """The API page with the documentation of each name in place of the names."""
    modules = face()

    def blocks(line: re.Match[str]) -> str:
        names = re.findall(r"`wb\.([\w.]+)`", line[0])
        paths = (
            ".".join(filter(None, ["workbench", modules[name], name.rpartition(".")[2]]))
            for name in names
        )
        # The package finds these beside the notebooks when it runs.
        beside = re.compile(r"workbench\.teaching\.(?=(exercises|_lib)\b)")
        return "\n\n".join(f"::: {beside.sub('', path)}" for path in paths)

    return _NAMES.sub(blocks, text)


class Examples(importlib.import_module("griffe").Extension):
    """Examples in docstrings are code, wherever they stand."""

    def on_instance(self, *, obj: Any, **_: object) -> None:
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)


def on_files(files: Any, config: Any) -> Any:
    """Add README.md, as the first page."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    # By name: MkDocs is not installed where the types are checked.
    of_mkdocs = importlib.import_module("mkdocs.structure.files")
    page = of_mkdocs.File.generated(config, "index.md", content=from_the_site(readme, ROOT))
    files.append(page)
    return files


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """Links as the site has them; the API's documentation."""
    if page.file.src_path == "index.md":
        return markdown
    if page.file.src_path == "api.md":
        markdown = documented(markdown)
    return from_the_site(markdown, ROOT / "docs")
