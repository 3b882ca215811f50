"""Checking a million rows against `datasets.map` doing the same: rows a second, and peak memory.

    uv run python benchmarks/dataset_checks.py [--rows 1000000]

Each arm runs in a process of its own, in rotating order, on the same file; the workbench's arm runs twice in each round,
and the ratio of those two is the noise (A/A). Reading the file is part of the workbench's time and not of `map`'s, whose
rows lie in Arrow already; what loading them took is reported beside it.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

HERE = Path(__file__).parent
LENGTHS = "lengths"
ARMS = ("workbench", "workbench again", "map", "map, batched")


def make(path: Path, count: int) -> None:
    """`count` short rows; one in a hundred is a duplicate, one in a hundred has no answer."""
    draw = random.Random(0)
    with path.open("w", encoding="utf-8") as lines:
        for number in range(count):
            first = draw.randrange(1000) if number % 100 == 7 else number
            answer = "" if number % 100 == 3 else str(first + 17)
            lines.write(json.dumps({"prompt": f"What is {first} + 17?", "answer": answer}) + "\n")


def measure(arm: str, path: str) -> dict[str, float]:
    """Seconds, counts and peak memory of one arm, in this process."""
    import resource

    from workbench.dataset.checks import Checked

    found: dict[str, float] = {}
    if arm.startswith("workbench"):
        started = time.perf_counter()
        checked = Checked(path, chat=False, answer_after=None)
        for _ in checked:
            pass
        found["seconds"] = time.perf_counter() - started
        found["kept"] = checked.report.kept_rows
    elif arm == LENGTHS:
        from workbench.checking import check_source

        started = time.perf_counter()
        result = check_source(path, policy="tiny")
        found = {"seconds": time.perf_counter() - started, "kept": result.report.kept_rows}
    else:
        found = by_map(path, batched="batched" in arm)
    found["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return found


def by_map(path: str, batched: bool) -> dict[str, float]:
    """The same checks, row by row, as a function for `datasets.map`; nothing cached from an earlier round."""
    import datasets

    from workbench.dataset.checks import Checked

    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as cache:
        started = time.perf_counter()
        rows = datasets.load_dataset("json", data_files=path, split="train", cache_dir=cache)
        loaded = time.perf_counter() - started
        checker = Checked(path, chat=False, answer_after=None)
        checker.begin()

        def one(row: dict) -> dict:
            return {"reason": checker.look(dict(row))[1]}

        def many(batch: dict) -> dict:
            some = zip(batch["prompt"], batch["answer"], strict=True)
            return {"reason": [checker.look({"prompt": p, "answer": a})[1] for p, a in some]}

        started = time.perf_counter()
        done = rows.map(many if batched else one, batched=batched, new_fingerprint=f"{time.time_ns()}")
        seconds = time.perf_counter() - started
        return {"seconds": seconds, "load_s": loaded, "kept": sum(reason is None for reason in done["reason"])}


def run_arm(arm: str, path: Path) -> dict[str, float]:
    """`measure` in a process of its own."""
    command = [sys.executable, __file__, "--arm", arm, "--file", str(path)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return json.loads(output.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--arm", help=argparse.SUPPRESS)
    parser.add_argument("--file", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.arm:
        print(json.dumps(measure(asked.arm, asked.file)))
        return
    results: dict[str, list[dict]] = {arm: [] for arm in ARMS}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        make(path, asked.rows)
        for turn in range(asked.rounds):
            for arm in (*ARMS[turn % len(ARMS) :], *ARMS[: turn % len(ARMS)]):
                results[arm].append(run_arm(arm, path))
                print(f"round {turn + 1}, {arm}: {results[arm][-1]['seconds']:.1f} s", file=sys.stderr, flush=True)
        with_lengths = run_arm(LENGTHS, path)
        few = Path(folder) / "few.jsonl"
        peaks = {}
        for count, arm in ((1_000, LENGTHS), (100_000, "workbench"), (2 * asked.rows, "workbench")):
            make(few, count)
            peaks[f"{arm}, {count} rows"] = run_arm(arm, few)["peak_mb"]
    kept = {run["kept"] for runs in results.values() for run in runs}
    assert len(kept) == 1, f"the arms disagree on what they kept: {kept}"
    best = {arm: min(run["seconds"] for run in runs) for arm, runs in results.items()}
    pairs = [a["seconds"] / b["seconds"] for a, b in zip(results["workbench"], results["workbench again"], strict=True)]
    from workbench.run.versions import versions

    found = {
        "date": date.today().isoformat(),
        "machine": f"{platform.system()} {platform.machine()}",
        "versions": versions(),
        "rows": asked.rows,
        "kept": kept.pop(),
        "rounds": asked.rounds,
        "seconds_best": best,
        "rows_per_s": {arm: asked.rows / seconds for arm, seconds in best.items()},
        "map_over_workbench": {arm: best[arm] / best["workbench"] for arm in ("map", "map, batched")},
        "a_over_a": [min(pairs), max(pairs)],
        "peak_mb": {arm: max(run["peak_mb"] for run in runs) for arm, runs in results.items()},
        "with_lengths": with_lengths,  # once, through the embedded policy's chat template and tokenizer
        "peak_mb_by_rows": peaks,
        "load_s": min(run["load_s"] for run in results["map"]),
    }
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / "dataset_checks.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    for arm in ARMS:
        print(
            f"{arm:16}  {best[arm]:6.1f} s  {asked.rows / best[arm]:9.0f} rows/s  peak {found['peak_mb'][arm]:6.0f} MB"
        )
    print(f"with lengths: {with_lengths['seconds']:.1f} s, peak {with_lengths['peak_mb']:.0f} MB")
    print(f"A/A {min(pairs):.2f} to {max(pairs):.2f}; map / workbench {found['map_over_workbench']['map']:.2f}")


if __name__ == "__main__":
    main()
