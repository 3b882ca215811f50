"""Run every benchmark that needs no GPU, and make the README's tables of what they left.

    uv run python benchmarks/all.py             # two hours, on a machine with nothing else
    uv run python benchmarks/all.py --quick     # toy sizes: shows that they run, measures nothing
    uv run python benchmarks/all.py --only steps start
    uv run python benchmarks/all.py --table     # runs nothing: the table of results/*.json
    uv run python benchmarks/all.py --write     # runs nothing: puts every table into README.md
    uv run python benchmarks/all.py --short --out AFTER   # briefly, what a change may make slower
    uv run python benchmarks/all.py --compare BEFORE AFTER  # two such folders of one machine: exit
                          # code 1 where something became slower by more than the A/A of both

What measures a time runs alone; then the others do, two at a time. Campaigns take from half
an hour to many hours each, and run only if --only names them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import measuring

ALONE = (
    "steps", "generation", "checkpoints", "hooks", "scoring", "answers", "replay", "reading",
    "long_run", "start", "dataset_checks", "held_out", "real_model",
)  # fmt: skip
TOGETHER = (
    "health", "control_arm", "resident", "bad_environments", "verifying", "warm_start", "judges",
)  # fmt: skip
CAMPAIGNS = ("exports", "turns", "kills", "damage", "broken_runs", "levels", "duel", "rungs")
NAMES = (*ALONE, *TOGETHER, *CAMPAIGNS)
SHORT = {
    "steps": ["--case", "demo, nf4", "--case", "demo, 16 bit"],
    "generation": ["--rounds", "3"],
    "scoring": ["--rounds", "5"],
    "start": ["--rounds", "4"],
}  # measured weekly, by .github/workflows/weekly.yml
WORDS = {"judges": ["--real", "smollm2"]}  # what the committed result was asked for
SLACK = 1.1  # beyond the A/A, as minutes lie between two measurements of one machine
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
    keys = {
        "what": "what",
        "figure": "figure",
        "before": "before",
        "against": "against",
        "noise": "A/A",
    }
    header = [*keys.values(), "benchmark", "date", "commit"]
    rows = [
        [
            *(line.get(key, "") for key in keys),
            f"`{name}.py`",
            content["date"],
            content["versions"]["commit"],
        ]
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


def slower(before: dict[str, str], after: dict[str, str]) -> tuple[float, float] | None:
    """(How many times as slow a line of a result says that something became, how many the A/A of
    both allow); None where its figure is no time.
    """

    def read(line: dict[str, str]) -> tuple[float, float] | None:
        # (how long it takes, in units of which both lines have the same; its A/A as a factor)
        if found := re.search(r"([\d.]+) times (as fast|as long|the time)", line["figure"]):
            low, high = map(float, re.findall(r"[\d.]+", line["noise"])[:2])
            times = float(found[1])
            return 1 / times if found[2] == "as fast" else times, max(high, 1 / low)
        if found := re.match(r"([\d.]+) ms more", line["figure"]):
            more, noise = float(found[1]), float(line["noise"].split()[0])
            return more, 1 + noise / max(more, noise)
        return None

    old, new = read(before), read(after)
    if old is None or new is None or not old[0]:
        return None
    return new[0] / old[0], SLACK * old[1] * new[1]


def compared(before: Path, after: Path) -> tuple[str, bool]:
    """(A table of every time that both folders hold, whether one became longer than the A/A
    allows).
    """
    lines = {
        (name, line["what"]): line
        for name, content in results(before).items()
        for line in content["lines"]
    }
    rows, worse = [], False
    for name, content in results(after).items():
        for line in content["lines"]:
            old = lines.get((name, line["what"]))
            if old and (found := slower(old, line)):
                times, allowed = found
                verdict = "SLOWER" if times > allowed else "within the A/A"
                worse |= times > allowed
                numbers = [f"{times:.2f}", f"{allowed:.2f}"]
                rows.append([line["what"], old["figure"], line["figure"], *numbers, verdict])
    if not rows:
        raise SystemExit(f"{before} and {after} have no time in common: nothing was compared")
    header = ["what", "before", "after", "times as slow", "allowed", "verdict"]
    return measuring.markdown(header, rows), worse


def run(names: list[str], more: dict[str, list[str]]) -> list[str]:
    """Run benchmarks, each in a process of its own with these words more; the names of those that
    failed.
    """
    began = time.perf_counter()

    def one(name: str, threads: str | None = None) -> bool:
        measuring.say(f"--- {names.index(name) + 1} of {len(names)}: {name}")
        started = time.perf_counter()
        command = [sys.executable, str(measuring.HERE / f"{name}.py"), *more.get(name, [])]
        own = {"OMP_NUM_THREADS": threads} if threads else {}
        code = subprocess.run(command, env={**os.environ, **own}).returncode
        now = time.perf_counter()
        measuring.say(
            f"--- {name}: exit code {code} after {now - started:.0f} s; {(now - began) / 60:.0f}"
            " minutes in all"
        )
        return bool(code)

    failed = [name for name in names if name not in TOGETHER and one(name)]
    others = [name for name in names if name in TOGETHER]
    with ThreadPoolExecutor(2) as two:
        codes = two.map(lambda name: one(name, threads="1"), others)
        return failed + [name for name, code in zip(others, codes, strict=True) if code]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="toy sizes, and no results kept")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=NAMES,
        default=[*ALONE, *TOGETHER],
        metavar="NAME",
        help=f"{', '.join(NAMES)} (default: all but {', '.join(CAMPAIGNS)})",
    )
    parser.add_argument(
        "--table", action="store_true", help="print the table of the results that are there"
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help="put the tables of the results that are there into README.md",
    )
    parser.add_argument("--short", action="store_true", help=f"only {', '.join(SHORT)}, briefly")
    parser.add_argument("--out", type=Path, help="folder for the results of --short")
    parser.add_argument(
        "--compare", type=Path, nargs=2, metavar=("BEFORE", "AFTER"), help="of two such folders"
    )
    asked = parser.parse_args()
    if asked.short and asked.out is None:
        parser.error("--short needs --out: results/ holds the whole measurements")
    if asked.compare:
        table, worse = compared(*asked.compare)
        print(table)
        return int(worse)
    if asked.table:
        print(overview(results()))
    if asked.write:
        README.write_text(
            rewritten(README.read_text(encoding="utf-8"), results()), encoding="utf-8"
        )
    if asked.table or asked.write:
        return 0
    words = ["--quick"] if asked.quick else []
    more = dict.fromkeys(asked.only, words) if asked.quick else WORDS
    if asked.short:
        asked.out.mkdir(parents=True, exist_ok=True)
        more = {name: [*of, *words, "--out", str(asked.out)] for name, of in SHORT.items()}
    failed = run(list(SHORT) if asked.short else asked.only, more)
    if failed:
        measuring.say(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
