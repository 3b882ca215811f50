"""Lines of Python per folder of the package, beside the budget: `python tools/lines.py`.

A budget is a question, not a wall: what did the change make unnecessary?
"""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "workbench"
BUDGET = 24_800


def lines_by_folder(package: Path = PACKAGE) -> dict[str, int]:
    """Lines of each folder directly in the package, and of the modules beside them ("(top)")."""
    found: dict[str, int] = {}
    for file in sorted(package.rglob("*.py")):
        parts = file.relative_to(package).parts
        folder = parts[0] if len(parts) > 1 else "(top)"
        found[folder] = found.get(folder, 0) + len(file.read_text(encoding="utf-8").splitlines())
    return found


if __name__ == "__main__":
    counted = lines_by_folder()
    total = sum(counted.values())
    for folder, lines in sorted(counted.items(), key=lambda item: -item[1]):
        print(f"{lines:7,}  {folder}")
    over = f", {total - BUDGET:,} above it" if total > BUDGET else ""
    print(f"{total:7,}  in all; budget {BUDGET:,}{over}")
