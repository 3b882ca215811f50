"""A run of twenty thousand steps: what its process holds, and how long it takes to examine it, with
and without merged parts.

    uv run python benchmarks/long_run.py [--steps 500 5000 20000]

The steps are made up (8 completions each, whose texts repeat after a hundred), and go through the
recorder, the health verdicts and the live plot as those of a real run do, one after the other, as
fast as that takes. After so many steps the process says what it holds, and waits while the record
is asked in other processes, twice where parts are merged (A/A); their seconds are without imports.
"Without" keeps one Parquet part a step, as before parts were merged. Files that were just written
lie in the machine's cache.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import made_records
import measuring
from measuring import Line, between, ratio

NAME = "long"
POOL = 100  # steps whose texts are made
MERGED, PLAIN = "merged", "one part a step"


class _Place:
    """Stands for a place in a notebook: pictures are drawn, and thrown away."""

    def update(self, *_: Any, **__: Any) -> None: ...


def record(points: list[int], merged: bool) -> list[dict[str, Any]]:
    """Record a run under WORKBENCH_HOME, in this process; what it holds and how long questions
    take, after each of `points`.
    """
    from workbench.health import RunConfig, Watchdog
    from workbench.recipe import Recipe
    from workbench.run import parts
    from workbench.run.directory import RunDirectory
    from workbench.run.rollouts import read_batches
    from workbench.training import recorder as module
    from workbench.training.features.watchdog import HealthWatch
    from workbench.views.live import LivePlot

    pool = made_records.make(POOL * made_records.GENERATIONS, made_records.GENERATIONS)
    pool.release()
    batches = [
        dataclasses.replace(own, completion_ids=[[0]] * len(own.completions))
        for own in read_batches(pool)
    ]
    if not merged:
        parts.MERGE = module.MERGE = 10**9
    spent = [0.0]

    def timed_merge(*asked: Any) -> None:
        started = time.thread_time()
        merge(*asked)
        spent[0] += time.thread_time() - started

    merge, module.merge = module.merge, timed_merge
    run, plot, chance = (
        RunDirectory.create(NAME, Recipe(), pool.manifest()),
        LivePlot(),
        random.Random(0),
    )
    recorder = module.Recorder(run, [0], [plot])
    HealthWatch(SimpleNamespace(recorder=recorder)).dog = Watchdog(RunConfig)
    recorder.tell("begin", run, points[-1], {"beta": 0.0})
    plot.places = {name: _Place() for name in ("status", "picture", "below")}
    found, step = [], 0
    for point in points:
        began, recorded_s, merged_s, steps = (
            time.perf_counter(),
            recorder.seconds,
            spent[0],
            point - step,
        )
        while step < point:
            step += 1
            recorder.batch(dataclasses.replace(batches[step % len(batches)], step=step))
            recorder.log(step, made_records.metrics_row(step, points[-1], batches[0].names, chance))
        recorder.finish()
        recorder._merger.submit(int).result()  # what is to be merged until now is
        files = list(run.rollouts.iterdir())
        held = {
            "steps": step,
            "rss_mb": _rss_mb(),
            "handles": len(os.listdir("/proc/self/fd")),
            "threads": threading.active_count(),
            "files": len(files),
            "record_mb": sum(file.stat().st_size for file in files) / 2**20,
            "step_ms": 1000 * (time.perf_counter() - began) / steps,
            "recorded_ms": 1000 * (recorder.seconds - recorded_s) / steps,
            "merge_cpu_ms": 1000 * (spent[0] - merged_s) / steps,
        }
        arms = [
            f"{name}{again}"
            for name in questions()
            for again in (("", " again") if merged else ("",))
        ]
        asked = measuring.in_rounds(
            arms,
            1,
            lambda arm: measuring.own_process(
                "long_run.py", "--measure", arm.removesuffix(" again")
            ),
        )
        found.append(
            {
                **held,
                "seconds": {arm: [one["seconds"] for one in own] for arm, own in asked.items()},
            }
        )
        measuring.say(json.dumps(found[-1]))
    recorder.close()
    recorder.tell("end", "")
    return found


def _rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def questions() -> dict[str, Callable[[Any], Any]]:
    """What is asked of a run, by name."""

    def examine(run: Any) -> int:
        from workbench.health import examine_run

        return len(examine_run(run))

    def steps(run: Any) -> int:
        from workbench.inspection.reading import by_step

        return len(by_step(run))

    def counted(run: Any) -> int:
        from workbench.run.rollouts import query

        return int(query(run.rollouts, "select count(*), avg(total) from rollouts").iloc[0, 0])

    return {"examine_run": examine, "by_step": steps, "query": counted}


def measure(question: str) -> dict[str, Any]:
    """Seconds and answer of one question, in this process."""
    # With all that they import when they are first used.
    import duckdb  # noqa: F401
    import pandas  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import scipy.stats  # noqa: F401

    from workbench.health import examine_run  # noqa: F401
    from workbench.run.directory import open_run

    run = open_run(NAME)
    started = time.perf_counter()
    answer = questions()[question](run)
    return {
        "seconds": time.perf_counter() - started,
        "answer": answer,
        "peak_mb": measuring.peak_mb(),
    }


def main() -> None:
    parser = measuring.arguments(__doc__)
    parser.add_argument(
        "--steps",
        type=int,
        nargs="+",
        default=[500, 5_000, 20_000],
        help="after which the run is examined",
    )
    parser.add_argument(
        "--record",
        choices=(MERGED, PLAIN),
        help="record such a run here, under WORKBENCH_HOME, and print JSON",
    )
    parser.add_argument("--measure", help="ask this question of it here, and print JSON")
    asked = measuring.parse(parser, steps=[20, 600])
    if asked.record:
        print(json.dumps(record(asked.steps, asked.record == MERGED)))
        return
    if asked.measure:
        print(json.dumps(measure(asked.measure)))
        return
    stamped, found = measuring.stamp(), {}
    for arm in (MERGED, PLAIN):
        with measuring.empty_home():
            found[arm] = measuring.own_process(
                "long_run.py", "--record", arm, "--steps", *map(str, asked.steps)
            )
    rows = []
    for own, (arm, points) in itertools.product(range(len(asked.steps)), found.items()):
        point = points[own]
        held = [
            f"{point['rss_mb']:.0f}",
            point["handles"],
            point["threads"],
            point["files"],
            f"{point['record_mb']:.1f}",
        ]
        rows.append(
            [
                f"{point['steps']:,}",
                arm,
                *held,
                *(f"{min(point['seconds'][name]):.2f}" for name in questions()),
            ]
        )
    first, last, plain = found[MERGED][0], found[MERGED][-1], found[PLAIN][-1]
    noise = {
        name: ratio(last["seconds"][name], last["seconds"][f"{name} again"]) for name in questions()
    }
    lines = [
        Line(
            f"{name} of {last['steps']:,} steps",
            f"{min(last['seconds'][name]):.2f} s",
            f"{PLAIN}: {min(plain['seconds'][name]):.2f} s",
            between(noise[name]),
        )
        for name in questions()
    ]
    growth = (
        f"{last['rss_mb'] - first['rss_mb']:+.0f} MB, {last['handles'] - first['handles']:+}"
        " handles"
    )
    lines.append(
        Line(
            f"a run's process after {last['steps']:,} steps",
            growth,
            f"after {first['steps']:,}",
            "none: one run",
        )
    )
    note = (
        f"A step took {last['step_ms']:.1f} ms, {last['recorded_ms']:.1f} of them in recorder,"
        f" verdicts and plot ({plain['step_ms']:.1f} and {plain['recorded_ms']:.1f} without"
        f" merging); merging takes {last['merge_cpu_ms']:.2f} ms of processor time a step, on a"
        " thread of its own."
    )
    header = [
        "steps",
        "record",
        "RSS, MB",
        "handles",
        "threads",
        "files",
        "MB",
        *(f"{name}, s" for name in questions()),
    ]
    measuring.save(
        "long_run",
        asked,
        stamped,
        lines,
        (header, rows),
        {"arms": found, "a_over_a": noise},
        [note],
    )


if __name__ == "__main__":
    main()
