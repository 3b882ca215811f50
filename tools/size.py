"""Code tokens per folder of the package, beside their limits: `python tools/size.py`.

A token is one of Python's own `tokenize`; comments, docstrings, line ends and indentation are free,
so packing a line saves nothing. The limits are in `[tool.size]` of pyproject.toml. A folder that
grows past its limit fails CI: find what the change made unnecessary, or raise the number in the
same commit, where a reviewer sees it.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FREE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
# From Python 3.12 on an f-string is many tokens, with what its braces hold: it counts as one.
FORMATTED, FORMATTED_END = (getattr(tokenize, f"FSTRING_{end}", -1) for end in ("START", "END"))


class Size(NamedTuple):
    """Size of some code."""

    tokens: int
    lines: int

    @property
    def tokens_per_line(self) -> float:
        return self.tokens / max(1, self.lines)

    def __str__(self) -> str:
        return f"{self.tokens:8,} tokens {self.lines:7,} lines {self.tokens_per_line:5.1f} a line"


def size_of(code: str) -> Size:
    """Size of one file's text; blank and comment lines count as lines."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        (node.body[0].lineno, node.body[0].col_offset)
        for node in ast.walk(ast.parse(code))
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None
    }
    tokens = depth = 0
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        depth -= token.type == FORMATTED_END
        free = depth or token.type in {*FREE, FORMATTED_END} or token.start in docstrings
        tokens += not free
        depth += token.type == FORMATTED
    return Size(tokens, len(code.splitlines()))


def sizes(package: Path) -> dict[str, Size]:
    """Size of each folder directly in the package, and of the modules beside them ("top"); the
    largest first.
    """
    by_folder: dict[str, Size] = {}
    for file in sorted(package.rglob("*.py")):
        folder, *inner = file.relative_to(package).parts
        key = folder if inner else "top"
        tokens, lines = by_folder.get(key, Size(0, 0))
        more = size_of(file.read_text(encoding="utf-8"))
        by_folder[key] = Size(tokens + more.tokens, lines + more.lines)
    return dict(sorted(by_folder.items(), key=lambda item: -item[1].tokens))


def house_of(by_folder: dict[str, Size]) -> int:
    """Tokens of all but what goes beyond the five stages."""
    return sum(size.tokens for folder, size in by_folder.items() if folder != "instruments")


def excesses(by_folder: dict[str, Size], total: Size, limits: dict) -> list[str]:
    """One line per limit that is exceeded. A folder without a limit has the limit 0."""
    lines = [
        f"{folder}: {size.tokens:,} tokens, its limit is {limits['tokens'].get(folder, 0):,}"
        for folder, size in by_folder.items()
        if size.tokens > limits["tokens"].get(folder, 0)
    ]
    house = house_of(by_folder)
    if house > limits["house"]:
        lines.append(f"house: {house:,} tokens, its limit is {limits['house']:,}")
    if total.tokens_per_line > limits["tokens_per_line"]:
        lines.append(
            f"{total.tokens_per_line:.2f} tokens a line, the limit is {limits['tokens_per_line']}"
        )
    return lines


def main() -> int:
    """Print the table; 1 if a limit is exceeded."""
    limits = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["size"]
    by_folder = sizes(ROOT / "workbench")
    total = Size(*map(sum, zip(*by_folder.values())))
    for folder, size in by_folder.items():
        print(f"{size}  {folder} (limit {limits['tokens'].get(folder, 0):,})")
    print(f"{total}  in all")
    house, most = house_of(by_folder), limits["house"]
    print(f"house: {house:,} tokens (limit {most:,}, goal {limits['goal']:,})")
    exceeded = excesses(by_folder, total, limits)
    for line in exceeded:
        print(
            f"over: {line}. Delete what became unnecessary, or edit [tool.size] in pyproject.toml."
        )
    return int(bool(exceeded))


if __name__ == "__main__":
    sys.exit(main())
