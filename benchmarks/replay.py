"""Replaying a million recorded completions with the five functions: seconds, and peak memory at
three sizes.

    uv run python benchmarks/replay.py [--completions 1000000]

The record is made here, without training: groups of 8 in the ways of answering that the embedded
policy has, scored by two functions, in parts of 4,096. Each replay runs in a process of its own;
the full one runs twice in every round, and the ratio of the two is the noise (A/A).
"""

from __future__ import annotations

import json
import time

import made_records
import measuring
from measuring import Line

PART = 4096


def measure(limit: int) -> dict[str, float]:
    """Seconds and peak memory of one replay, in this process."""
    from workbench.inspection.replaying import replay
    from workbench.rewards.suite import RewardSuite

    score, inside = RewardSuite.score_each, [0.0]

    def timed(*arguments: object, **given: object) -> object:
        started = time.perf_counter()
        scores = score(*arguments, **given)
        inside[0] += time.perf_counter() - started
        return scores

    RewardSuite.score_each = timed
    started = time.perf_counter()
    found = replay(made_records.NAME, "arithmetic", limit=limit)
    return {
        "seconds": time.perf_counter() - started,
        "scoring_s": inside[0],
        "completions": found.completions,
        "turned": found.turned_up + found.turned_down,
        "came_alive": found.came_alive,
        "peak_mb": measuring.peak_mb(),
    }


def main() -> None:
    parser = measuring.arguments(__doc__)
    parser.add_argument("--completions", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--make", action="store_true", help="only make the record, under WORKBENCH_HOME"
    )
    parser.add_argument(
        "--measure", type=int, help="replay so many completions of it here, and print JSON"
    )
    asked = measuring.parse(parser, completions=16_384, rounds=1)
    if asked.make:
        made_records.make(asked.completions, PART)
        print("null")
        return
    if asked.measure:
        print(json.dumps(measure(asked.measure)))
        return
    stamped = measuring.stamp()
    sizes = {
        "a hundredth": asked.completions // 100,
        "a tenth": asked.completions // 10,
        "all": asked.completions,
        "all again": asked.completions,
    }
    with measuring.empty_home() as home:
        started = time.perf_counter()
        measuring.own_process("replay.py", "--make", "--completions", str(asked.completions))
        measuring.say(f"record made in {time.perf_counter() - started:.0f} s")
        parts = home.rglob("*.parquet")
        record_mb = sum(file.stat().st_size for file in parts) / 2**20
        rounds = measuring.in_rounds(
            list(sizes),
            asked.rounds,
            lambda arm: measuring.own_process("replay.py", "--measure", str(max(1, sizes[arm]))),
            lambda run: f"{run['completions']} completions: {run['seconds']:.1f} s",
        )
    runs = [min(same, key=lambda run: run["seconds"]) for same in rounds.values()]
    first, second = runs[-2:]
    noise = measuring.ratio(
        *([run["seconds"] for run in rounds[arm]] for arm in ("all", "all again"))
    )
    found = {
        "generations": made_records.GENERATIONS,
        "record_mb": record_mb,
        "runs": runs,
        "rounds": rounds,
        "completions_per_s": first["completions"] / min(first["seconds"], second["seconds"]),
        "a_over_a": noise,
    }
    rows = [
        [
            f"{run['completions']:,}",
            f"{run['seconds']:.1f}",
            f"{run['scoring_s']:.1f}",
            f"{run['peak_mb']:.0f}",
        ]
        for run in runs
    ]
    rows[-1][0] += " again"
    line = Line(
        f"replaying {first['completions']:,} completions",
        f"{min(first['seconds'], second['seconds']):.0f} s, peak"
        f" {max(first['peak_mb'], second['peak_mb']):.0f} MB",
        "nothing",
        measuring.between(noise),
    )
    header = ["completions", "seconds", "of which the functions", "peak memory, MB"]
    note = f"A/A {measuring.between(noise)}. The record takes {record_mb:.0f} MB on disk."
    measuring.save("replay", asked, stamped, [line], (header, rows), found, [note])


if __name__ == "__main__":
    main()
