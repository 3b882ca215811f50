"""Replaying a million recorded completions with the five functions: seconds, and peak memory at three sizes.

    uv run python benchmarks/replay.py [--completions 1000000]

The record is made here, without training: groups of 8 in the ways of answering that the embedded policy has, scored by
two functions, in parts of 4,096. Each replay runs in a process of its own; the full one runs twice, and the ratio of the two
is the noise (A/A).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

HERE = Path(__file__).parent
GENERATIONS = 8
PART = 4096


def make(completions: int) -> None:
    """A run called "recorded" under WORKBENCH_HOME."""
    from workbench.dataset.task import Task
    from workbench.rewards import library
    from workbench.rewards.suite import RewardSuite
    from workbench.run.directory import RunDirectory
    from workbench.run.recipe import Recipe
    from workbench.tiny.task import task as arithmetic
    from workbench.train.recorder import Recorder

    draw = random.Random(0)
    rows = arithmetic(train=2000, held_out=2).rows
    task = Task("recorded", rows, [library.correctness_reward, library.strict_format_reward])
    suite = RewardSuite(task, GENERATIONS)
    manifest = {
        "rewards": {
            "hash": suite.hash,
            "functions": suite.hashes,
            "weights": dict(zip(suite.names, suite.weights, strict=True)),
        },
        "settings": {"asked": {}, "in_force": {"num_generations": GENERATIONS, "scale_rewards": "group"}},
    }
    run = RunDirectory.create("recorded", Recipe(), manifest)
    suite.on_batch = Recorder(run, suite, eos_token_id=0).batch
    rows = task.with_ids(rows)
    for step, start in enumerate(range(0, completions, PART)):
        groups = draw.choices(rows, k=min(PART, completions - start) // GENERATIONS)
        batch = [row for row in groups for _ in range(GENERATIONS)]
        texts = [answer_to(row["answer"], draw) for row in batch]
        call = {
            "prompts": [row["prompt"] for row in batch],
            "completions": [[{"role": "assistant", "content": text}] for text in texts],
            "completion_ids": [list(text.encode()) for text in texts],
            "trainer_state": type("State", (), {"global_step": step}),
            "answer": [row["answer"] for row in batch],
            "prompt_id": [row["prompt_id"] for row in batch],
        }
        for func in suite.funcs:
            func(**call)


def answer_to(answer: str, draw: random.Random) -> str:
    """One completion: right, wrong, rambling, without tags, or with a tag missing."""
    given = answer if draw.random() < 0.6 else str(draw.randrange(200))
    working = f"{draw.randrange(100)} and {draw.randrange(100)} make {given}"
    kind = draw.random()
    if kind < 0.15:
        working = " ".join([working] * draw.randrange(4, 9))
    if kind > 0.9:
        return f"The answer is {given}."
    end = "</answer>" if kind < 0.8 else ""
    return f"<reasoning>\n{working}\n</reasoning>\n<answer>\n{given}\n{end}"


def measure(limit: int) -> dict[str, float]:
    """Seconds and peak memory of one replay, in this process."""
    import resource

    from workbench.replaying import replay_run
    from workbench.rewards.suite import RewardSuite

    score, inside = RewardSuite.score, [0.0]

    def timed(*arguments: object) -> object:
        started = time.perf_counter()
        scores = score(*arguments)
        inside[0] += time.perf_counter() - started
        return scores

    RewardSuite.score = timed
    started = time.perf_counter()
    found = replay_run("recorded", "arithmetic", limit=limit)
    return {
        "seconds": time.perf_counter() - started,
        "scoring_s": inside[0],
        "completions": found.completions,
        "turned": found.turned_up + found.turned_down,
        "came_alive": found.came_alive,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def in_own_process(home: str, *arguments: str) -> str:
    """This script with these arguments, in a process of its own; what it printed."""
    environment = {**os.environ, "WORKBENCH_HOME": home}
    command = [sys.executable, __file__, *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--completions", type=int, default=1_000_000)
    parser.add_argument("--make", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.make:
        make(asked.completions)
        return
    if asked.measure:
        print(json.dumps(measure(asked.measure)))
        return
    sizes = (asked.completions // 100, asked.completions // 10, asked.completions, asked.completions)
    with tempfile.TemporaryDirectory() as home:
        started = time.perf_counter()
        in_own_process(home, "--make", "--completions", str(asked.completions))
        print(f"record made in {time.perf_counter() - started:.0f} s", file=sys.stderr)
        record_mb = sum(file.stat().st_size for file in Path(home).rglob("*.parquet")) / 2**20
        runs = [json.loads(in_own_process(home, "--measure", str(size)).splitlines()[-1]) for size in sizes]
    from workbench.run.versions import versions

    first, second = runs[-2:]
    found = {
        "date": date.today().isoformat(),
        "machine": f"{platform.system()} {platform.machine()}",
        "versions": versions(),
        "generations": GENERATIONS,
        "record_mb": record_mb,
        "runs": runs,
        "completions_per_s": first["completions"] / min(first["seconds"], second["seconds"]),
        "a_over_a": first["seconds"] / second["seconds"],
    }
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / "replay.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    for run in runs:
        print(
            f"{run['completions']:>9} completions  {run['seconds']:6.1f} s (scoring {run['scoring_s']:.1f})  "
            f"peak {run['peak_mb']:5.0f} MB"
        )
    print(f"A/A {found['a_over_a']:.2f}; record {record_mb:.0f} MB")


if __name__ == "__main__":
    main()
