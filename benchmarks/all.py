"""Run every benchmark that needs no GPU, one after the other, and make the README's tables of what
they left.

uv run python benchmarks/all.py                    # about two hours; nothing else should run
meanwhile uv run python benchmarks/all.py --quick            # toy sizes: shows that all of them
run, measures nothing uv run python benchmarks/all.py --only steps start
uv run python benchmarks/all.py --table            # runs nothing: the table of results/*.json, in
Markdown uv run python benchmarks/all.py --write            # runs nothing: puts every table into
README.md
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import measuring

NAMES = (
    "steps", "generation", "checkpoints", "exports", "verifying", "kills", "damage", "hooks",
    "scoring", "answers", "replay",
    "reading", "long_run", "start", "dataset_checks", "health", "broken_runs", "held_out", "turns",
    "warm_start", "levels", "real_model", "resident", "bad_environments",
    "judges", "duel", "rungs", "control_arm",
)  # fmt: skip
README = measuring.HERE / "README.md"
_BLOCK = re.compile(r"<!-- table: (\w+) -->\n.*?<!-- end -->", re.DOTALL)


def results(folder: Path = measuring.RESULTS) -> dict[str, dict[str, Any]]:
    """What the benchmarks left, by name and in their order; results in an older form are not among
    them.
    """
    found = {}
    for name in NAMES:
        if (folder / f"{name}.json").is_file():
            content = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
            if "lines" in content:
                found[name] = content
    return found


def overview(found: dict[str, dict[str, Any]]) -> str:
    """The table of all benchmarks."""
    header = ["what", "figure", "against", "A/A", "benchmark", "date", "commit"]
    rows = [
        [*line.values(), f"`{name}.py`", content["date"], content["versions"]["commit"]]
        for name, content in found.items()
        for line in content["lines"]
    ]
    return (
        measuring.markdown(header, rows) if rows else "Nothing has been measured in this form yet."
    )


def section(content: dict[str, Any]) -> str:
    """One benchmark's own table, and what it was measured with."""
    table = measuring.markdown(content["table"]["header"], content["table"]["rows"])
    kinds = ("python", "torch", "transformers", "trl", "peft", "bitsandbytes", "unsloth")
    versions = ", ".join(
        f"{kind} {content['versions'][kind]}" for kind in kinds if content["versions"].get(kind)
    )
    asked = ", ".join(
        f"{key} {value}" for key, value in content["asked"].items() if isinstance(value, int | list)
    )
    notes = " ".join([*content["notes"], ""])
    return (
        f"{table}\n\n{notes}{content['date']}, commit {content['versions']['commit']},"
        f" {content['machine']} (load before: {content['load_before']}), {versions}. Asked for:"
        f" {asked.replace('_', ' ')}."
    )


def rewritten(text: str, found: dict[str, dict[str, Any]]) -> str:
    """The README with every table made anew; the table of a benchmark without a result stays as it
    is.
    """

    def block(match: re.Match[str]) -> str:
        name = match[1]
        if name != "all" and name not in found:
            return match[0]
        return (
            f"<!-- table: {name}"
            f" -->\n{overview(found) if name == 'all' else section(found[name])}\n<!-- end -->"
        )

    return _BLOCK.sub(block, text)


def run(names: list[str], quick: bool) -> list[str]:
    """Run benchmarks, each in a process of its own; the names of those that failed."""
    failed = []
    for number, name in enumerate(names, start=1):
        measuring.say(f"--- {number} of {len(names)}: {name}")
        started = time.perf_counter()
        command = [
            sys.executable,
            str(measuring.HERE / f"{name}.py"),
            *(["--quick"] if quick else []),
        ]
        done = subprocess.run(command)
        if done.returncode:
            failed.append(name)
        measuring.say(
            f"--- {name}: exit code {done.returncode} after {time.perf_counter() - started:.0f} s"
        )
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="toy sizes, and no results kept")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=NAMES,
        default=list(NAMES),
        metavar="NAME",
        help=", ".join(NAMES),
    )
    parser.add_argument(
        "--table", action="store_true", help="print the table of the results that are there"
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help="put the tables of the results that are there into README.md",
    )
    asked = parser.parse_args()
    if asked.table:
        print(overview(results()))
    if asked.write:
        README.write_text(
            rewritten(README.read_text(encoding="utf-8"), results()), encoding="utf-8"
        )
    if asked.table or asked.write:
        return 0
    failed = run(asked.only, asked.quick)
    if failed:
        measuring.say(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
