"""Checking a million rows against `datasets.map` doing the same: rows a second, and peak memory.

    uv run python benchmarks/dataset_checks.py [--rows 1000000]

Each arm runs in a process of its own, in rotating order, on the same file; the workbench's arm runs
twice in each round, and the ratio of those two is the noise (A/A). Reading the file is part of the
workbench's time and not of `map`'s, whose rows lie in Arrow already; what loading them took is
reported beside it.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from pathlib import Path

import measuring
from measuring import Line, between, ratio

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
    from workbench.data.checks import Checked

    found: dict[str, float] = {}
    if arm.startswith("workbench"):
        started = time.perf_counter()
        checked = Checked(path, chat=False, answer_after=None)
        for _ in checked:
            pass
        found["seconds"] = time.perf_counter() - started
        found["kept"] = checked.report.kept_rows
    elif arm == LENGTHS:
        from workbench.commands.checking import check_source

        started = time.perf_counter()
        result = check_source(path, policy="tiny")
        found = {"seconds": time.perf_counter() - started, "kept": result.report.kept_rows}
    else:
        found = by_map(path, batched="batched" in arm)
    found["peak_mb"] = measuring.peak_mb()
    return found


def by_map(path: str, batched: bool) -> dict[str, float]:
    """The same checks, row by row, as a function for `datasets.map`; nothing cached from an earlier
    round.
    """
    import datasets

    from workbench.data.checks import Checked
    from workbench.data.reasons import LeftOut

    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as cache:
        started = time.perf_counter()
        rows = datasets.load_dataset("json", data_files=path, split="train", cache_dir=cache)
        loaded = time.perf_counter() - started
        checker = Checked(path, chat=False, answer_after=None)

        def reason(row: dict) -> str | None:
            try:
                checker._row(row)
            except LeftOut as left_out:
                return left_out.reason
            return None

        def one(row: dict) -> dict:
            return {"reason": reason(dict(row))}

        def many(batch: dict) -> dict:
            some = zip(batch["prompt"], batch["answer"], strict=True)
            return {"reason": [reason({"prompt": p, "answer": a}) for p, a in some]}

        started = time.perf_counter()
        done = rows.map(
            many if batched else one, batched=batched, new_fingerprint=f"{time.time_ns()}"
        )
        seconds = time.perf_counter() - started
        return {
            "seconds": seconds,
            "load_s": loaded,
            "kept": sum(reason is None for reason in done["reason"]),
        }


def main() -> None:
    parser = measuring.arguments(__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--measure", choices=(*ARMS, LENGTHS), help="measure this arm here, and print JSON"
    )
    parser.add_argument("--file", help="with --measure: the rows")
    asked = measuring.parse(parser, rows=2_000, rounds=1)
    if asked.measure:
        print(json.dumps(measure(asked.measure, asked.file)))
        return

    def run(arm: str, file: Path) -> dict[str, float]:
        return measuring.own_process("dataset_checks.py", "--measure", arm, "--file", str(file))

    stamped = measuring.stamp()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        make(path, asked.rows)
        results = measuring.in_rounds(
            ARMS,
            asked.rounds,
            lambda arm: run(arm, path),
            lambda found: f"{found['seconds']:.1f} s",
        )
        with_lengths = run(LENGTHS, path)
        few = Path(folder) / "few.jsonl"
        peaks = {}
        for count, arm in (
            (1_000, LENGTHS),
            (asked.rows // 10, "workbench"),
            (2 * asked.rows, "workbench"),
        ):
            make(few, count)
            peaks[f"{arm}, {count} rows"] = run(arm, few)["peak_mb"]
    kept = {run["kept"] for runs in results.values() for run in runs}
    assert len(kept) == 1, f"the arms disagree on what they kept: {kept}"
    seconds = {arm: [run["seconds"] for run in runs] for arm, runs in results.items()}
    best = {arm: min(own) for arm, own in seconds.items()}
    noise = ratio(seconds["workbench"], seconds["workbench again"])
    over = {arm: ratio(seconds[arm], seconds["workbench"]) for arm in ("map", "map, batched")}
    found = {
        "rows": asked.rows,
        "kept": kept.pop(),
        "seconds_best": best,
        "rows_per_s": {arm: asked.rows / own for arm, own in best.items()},
        "map_over_workbench": over,
        "a_over_a": noise,
        "peak_mb": {arm: max(run["peak_mb"] for run in runs) for arm, runs in results.items()},
        # once, through the embedded policy's chat template and tokenizer
        "with_lengths": with_lengths,
        "peak_mb_by_rows": peaks,
        "load_s": min(run["load_s"] for run in results["map"]),
    }
    rows = [
        [arm, f"{best[arm]:.1f}", f"{asked.rows / best[arm]:,.0f}", f"{found['peak_mb'][arm]:.0f}"]
        for arm in ARMS
    ]
    label = "checks and prompt lengths in tokens (once, no `map` beside it)"
    took = with_lengths["seconds"]
    rows.append(
        [label, f"{took:.1f}", f"{asked.rows / took:,.0f}", f"{with_lengths['peak_mb']:.0f}"]
    )
    lines = [
        Line(
            f"checking {asked.rows:,} rows, against {arm}",
            f"{other.of_least:.2f} times as fast, {found['peak_mb']['workbench']:.0f} MB of"
            f" {found['peak_mb'][arm]:.0f}",
            {"map": "`datasets.map`", "map, batched": "`datasets.map`, batched"}[arm],
            between(noise),
        )
        for arm, other in over.items()
    ]
    header = ["", "least, s", "rows/s", "peak memory, MB"]
    peaks_told = "; ".join(f"{some}: {peak:.0f} MB" for some, peak in peaks.items())
    notes = [
        (
            f"Loading the rows into Arrow took `map` {found['load_s']:.1f} s, which is not in its"
            " time."
        ),
        f"A/A {between(noise)}. Peak memory by size: {peaks_told}.",
    ]
    measuring.save("dataset_checks", asked, stamped, lines, (header, rows), found, notes)


if __name__ == "__main__":
    main()
