"""Scoring completions: the suite that a run scores with, against a plain loop that calls each
function itself.

    uv run python benchmarks/scoring.py [--batches 40]

The loop is what TRL does: every function is called with the whole batch. The suite does the same
through checks, groups and advantages, and with a deadline in a worker process, so it can only be
slower; what that costs is measured here. Batches of 64 and of 512 completions of the arithmetic
task's five functions, in one process, in rotating order, the loop and the suite twice in every
round (A/A); all must give the same scores. Against math-verify see answers.py.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import measuring
from made_records import GENERATIONS, answer_to
from measuring import Line, between, ratio

LOOP, ALONE, WORKER = "plain loop", "suite, no deadline", "suite, deadline (as a run has it)"
ARMS = (LOOP, f"{LOOP} again", ALONE, WORKER, f"{WORKER} again")
SIZES = (64, 512)


def batches_of(rows: list[dict[str, Any]], size: int, count: int) -> list[dict[str, Any]]:
    """Calls as TRL makes them: whole groups, every text another draw."""
    draw, found = random.Random(size), []
    for _ in range(count):
        batch = [
            row for row in draw.choices(rows, k=size // GENERATIONS) for _ in range(GENERATIONS)
        ]
        texts = [answer_to(row["answer"], draw) for row in batch]
        found.append(
            {
                "prompts": [row["prompt"] for row in batch],
                "completions": [[{"role": "assistant", "content": text}] for text in texts],
                "completion_ids": [list(text.encode()) for text in texts],
                "answer": [row["answer"] for row in batch],
                "trainer_state": type(
                    "State", (), {"global_step": 0, "max_steps": 1, "epoch": 0.0}
                )(),
            }
        )
    return found


def measure(size: int, count: int, rounds: int) -> dict[str, Any]:
    """All arms on `count` batches of `size` completions."""
    from workbench.rewards.suite import RewardSuite
    from workbench.tiny.task import task as arithmetic

    task = arithmetic()
    suites = {
        ALONE: RewardSuite(task, GENERATIONS, deadline_s=None),
        WORKER: RewardSuite(task, GENERATIONS),
    }
    functions: dict[str, list[Callable[..., Any]]] = {LOOP: list(task.reward_funcs)}
    functions |= {arm: suite.funcs for arm, suite in suites.items()}
    batches, scores = batches_of(task.rows, size, count), {}

    def run(arm: str) -> float:
        own = functions[arm.removesuffix(" again")]
        started = time.perf_counter()
        scores[arm] = [[func(**batch) for func in own] for batch in batches]
        return time.perf_counter() - started

    try:
        for arm in ARMS:
            run(arm)  # the worker starts, patterns are compiled
        seconds = measuring.in_rounds(ARMS, rounds, run)
    finally:
        for suite in suites.values():
            suite.close()
    for arm in ARMS:
        if scores[arm] != scores[LOOP]:
            raise AssertionError(f"{arm}: other scores than the loop's")
    return {
        "completions": size * count,
        "functions": len(task.reward_funcs),
        "completions_per_s": {arm: size * count / min(own) for arm, own in seconds.items()},
        "ms_a_batch": {arm: 1000 * min(own) / count for arm, own in seconds.items()},
        "over_loop": {arm: ratio(own, seconds[LOOP]) for arm, own in seconds.items()},
        "a_over_a_loop": ratio(seconds[LOOP], seconds[f"{LOOP} again"]),
        "a_over_a_suite": ratio(seconds[WORKER], seconds[f"{WORKER} again"]),
        "seconds": seconds,
    }


def main() -> None:
    parser = measuring.arguments(__doc__)
    parser.add_argument("--batches", type=int, default=40, help="of each size")
    parser.add_argument("--rounds", type=int, default=9)
    asked = measuring.parse(parser, batches=2, rounds=1)
    stamped, sizes, rows, lines = measuring.stamp(), {}, [], []
    for size in SIZES:
        sizes[size] = found = measure(size, asked.batches, asked.rounds)
        for arm in ARMS:
            speed, ms = found["completions_per_s"][arm], found["ms_a_batch"][arm]
            rows.append(
                [size, arm, f"{speed:,.0f}", f"{ms:.2f}", f"{found['over_loop'][arm].of_least:.2f}"]
            )
        ours, theirs = (found["ms_a_batch"][arm] for arm in (WORKER, LOOP))
        lines.append(
            Line(
                f"scoring {size} completions with five functions, under a deadline",
                f"{ours - theirs:.2f} ms a batch more ({found['over_loop'][WORKER].of_least:.2f}"
                " times as long)",
                "a plain loop",
                between(found["a_over_a_loop"]),
            )
        )
    header = ["completions a batch", "arm", "completions/s", "ms a batch", "times the loop's time"]
    measuring.save("scoring", asked, stamped, lines, (header, rows), {"sizes": sizes})


if __name__ == "__main__":
    main()
