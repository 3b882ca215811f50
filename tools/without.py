"""The tests of a copy of this repository that lacks one instrument, or each in turn.

    python tools/without.py twin -q tests/run     # these tests, without twin
    python tools/without.py each                  # the fast tests, without one after another

Its folder, its tests and its entry in the table are deleted in the copy; the house must not notice.
Pages, lessons and benchmarks tell of it, so their tests are left out.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TELL_OF_IT = (
    "test_docs.py", "test_readme.py", "test_project_files.py", "test_tiers.py", "test_texts.py",
    "test_turns_page.py", "test_findings_table.py", "teaching", "notebooks", "benchmarks",
)  # fmt: skip
TABLE = Path("workbench") / "base" / "instruments.py"


def instruments() -> list[str]:
    """All in the table."""
    return sorted(_entries(ROOT / TABLE))


def _entries(file: Path) -> dict[str, tuple[int, int]]:
    # instrument -> first and last line of its entry
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict):
            entries = zip(node.value.keys, node.value.values, strict=True)
            return {
                str(ast.literal_eval(key)): (key.lineno, value.end_lineno or 0)
                for key, value in entries
                if key is not None
            }
    raise LookupError(f"{file} has no table")


def remove(name: str, root: Path) -> None:
    """Delete an instrument from the repository at `root`."""
    first, last = _entries(root / TABLE)[name]
    lines = (root / TABLE).read_text(encoding="utf-8").splitlines(keepends=True)
    (root / TABLE).write_text("".join(lines[: first - 1] + lines[last:]), encoding="utf-8")
    for folder in ("workbench", "tests"):
        shutil.rmtree(root / folder / "instruments" / name)


def main() -> int:
    """1 if a test fails without one of them."""
    name, *words = sys.argv[1:] or ["each"]
    failed = []
    for each in instruments() if name == "each" else [name]:
        with tempfile.TemporaryDirectory() as place:
            copy = Path(place) / "copy"
            listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
            files = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True)
            for file in map(Path, files.stdout.splitlines()):
                if (ROOT / file).is_file():
                    (copy / file).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(ROOT / file, copy / file)
            remove(each, copy)
            print(f"without {each}:", flush=True)
            left_out = [f"--ignore=tests/{file}" for file in TELL_OF_IT]
            pytest = [sys.executable, "-m", "pytest", *left_out, *words]
            here = os.environ | {"PYTHONPATH": str(copy)}
            if subprocess.run(pytest, cwd=copy, env=here).returncode:
                failed.append(each)
    print(f"fails without: {', '.join(failed) or 'none'}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
