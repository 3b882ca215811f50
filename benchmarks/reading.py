"""Reading a record of ten million completions: what notebook 04 and the panels ask of it, in
seconds and peak memory.

    uv run python benchmarks/reading.py [--rows 10000000] [--a-step 512]

Writing is not measured. The record lies on disk as a run leaves it: a Parquet part a step (512
completions, so about 20,000 steps), those of every 250 steps merged, with as many lines of metrics;
its texts repeat after a hundred steps, which no question notices, as each looks at one step or
counts within steps. Every question is asked in a process of its own, twice in every round (A/A).
The libraries that read are imported before the clock; the peak is that of the whole process, and
"nothing" that of the libraries alone. Files that were just written lie in the machine's cache: from
a cold disk it takes longer. Replaying has a benchmark of its own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import made_records
import measuring
from measuring import Line, between, ratio

POOL = 100  # steps whose texts are made; the others repeat them


def make(rows: int, a_step: int) -> None:
    """The record, under WORKBENCH_HOME."""
    import numpy as np
    import pyarrow.parquet as pq

    from workbench.run.parts import merge, parts
    from workbench.run.rollouts import write_part

    steps = max(1, rows // a_step)
    run = made_records.make(min(POOL, steps) * a_step, a_step)
    run.update_manifest(
        result={"status": "finished", "steps": steps, "minutes": steps / 60},
        policy={"name": "tiny", "precision": "nf4", "linear4bit": 21, "backend": "none"},
    )
    run.release()
    functions = list(run.manifest()["rewards"]["weights"])
    made = []
    for part in parts(run.rollouts):
        table = pq.read_table(part)
        made.append({name: table.column(name).to_pylist() for name in table.column_names})
    for step in range(len(made) + 1, steps + 1):
        columns = {**made[step % len(made)], "step": np.full(a_step, step, dtype=np.int32)}
        write_part(run.rollouts, step, columns, functions)
        if step % 2000 == 0:
            measuring.say(f"{step} of {steps} steps written")
    merge(run.rollouts, steps)
    made_records.write_metrics(run, steps, functions)


def questions() -> dict[str, Callable[[Any, int], Any]]:
    """What is asked of a run of so many steps, by name."""

    def nothing(run: Any, last: int) -> None: ...

    def by_step(run: Any, last: int) -> int:
        from workbench.inspection.reading import by_step

        return len(by_step(run))

    def by_duckdb(run: Any, last: int) -> int:
        import duckdb

        sql = """select step, avg(total), avg(cast("right" as double)), avg(length_tokens),
            avg(cast(finish_reason = 'length' as double)), count(distinct completion)"""
        return len(
            duckdb.sql(f"{sql} from '{run.rollouts}/*.parquet' group by step order by step").df()
        )

    def first_page(run: Any, last: int) -> int:
        from workbench.inspection.browsing import browse

        return len(browse(run))

    def best_paid(run: Any, last: int) -> int:
        from workbench.inspection.browsing import browse

        return len(browse(run, "finish_reason = 'stop'", "total desc"))

    def telling(run: Any, last: int) -> int:
        from workbench.inspection.reading import explain_group

        return len(explain_group(run, last).explained.texts)

    def explained(run: Any, last: int) -> str:
        from workbench.inspection.reading import explain_group

        return explain_group(run, last, 0).explained.verdict

    def newest(run: Any, last: int) -> int:
        from workbench.run.rollouts import read_batches

        return len([*read_batches(run, [last])][-1].group(0).completions)

    def verdicts(run: Any, last: int) -> int:
        from workbench.health import examine_run

        return len(examine_run(run, last=200))

    def metrics(run: Any, last: int) -> int:
        return len(run.metrics())

    def curves(run: Any, last: int) -> int:
        from workbench.views.run_view import RunCurves

        return len(RunCurves(run)._repr_mimebundle_()["image/png"])

    return {
        "nothing": nothing,
        "the table of all steps (04)": by_step,
        "the same, one query of DuckDB's": by_duckdb,
        "the first page of the browser (04)": first_page,
        "the best-paid completions that ended (browser)": best_paid,
        "the group that taught most in the last step (04)": telling,
        "what decided a group of the last step (04)": explained,
        "a group of the newest step (panel)": newest,
        "health of the latest 200 steps (panel, watch)": verdicts,
        "all lines of metrics": metrics,
        "the curves (04)": curves,
    }


def measure(question: str) -> dict[str, Any]:
    """Seconds, peak memory and answer of one question, in this process."""
    # With all that they import when they are first used.
    import duckdb  # noqa: F401
    import pandas  # noqa: F401
    import pyarrow.parquet  # noqa: F401

    from workbench.run.directory import open_run

    run = open_run(made_records.NAME)
    last = run.result()["steps"]
    started = time.perf_counter()
    answer = questions()[question](run, last)
    return {
        "seconds": time.perf_counter() - started,
        "peak_mb": measuring.peak_mb(),
        "answer": answer,
    }


def main() -> None:
    parser = measuring.arguments(__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000, help="completions in the record")
    parser.add_argument(
        "--a-step",
        type=int,
        default=512,
        help="completions of a step, which are one part of the record",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--make", action="store_true", help="only make the record, under WORKBENCH_HOME"
    )
    parser.add_argument("--measure", help="ask this question of it here, and print JSON")
    asked = measuring.parse(parser, rows=6_400, a_step=64, rounds=1)
    if asked.make:
        make(asked.rows, asked.a_step)
        print("null")
        return
    if asked.measure:
        print(json.dumps(measure(asked.measure)))
        return
    stamped, names = measuring.stamp(), list(questions())
    with measuring.empty_home() as home:
        started = time.perf_counter()
        measuring.own_process(
            "reading.py", "--make", "--rows", str(asked.rows), "--a-step", str(asked.a_step)
        )
        measuring.say(f"record made in {time.perf_counter() - started:.0f} s")
        files = list(home.rglob("*.parquet"))
        record_mb = sum(file.stat().st_size for file in files) / 2**20
        runs = measuring.in_rounds(
            [f"{name}{again}" for name in names for again in ("", " again")],
            asked.rounds,
            lambda arm: measuring.own_process(
                "reading.py", "--measure", arm.removesuffix(" again")
            ),
            lambda one: f"{one['seconds']:.2f} s, {one['peak_mb']:.0f} MB",
        )
    found, rows = {}, []
    for name in names:
        first, second = runs[name], runs[f"{name} again"]
        seconds = [[one["seconds"] for one in some] for some in (first, second)]
        own = found[name] = {
            "least_s": min(map(min, seconds)),
            "peak_mb": max(one["peak_mb"] for one in (*first, *second)),
            "a_over_a": ratio(*seconds),
            "answer": first[0]["answer"],
            "seconds": seconds,
        }
        rows.append(
            [name, f"{own['least_s']:.3f}", f"{own['peak_mb']:.0f}", between(own["a_over_a"])]
        )
    lines = [
        Line(
            f"reading {asked.rows:,} completions: {name}",
            f"{found[name]['least_s']:.2f} s, peak {found[name]['peak_mb']:.0f} MB",
            f"the libraries alone: {found['nothing']['peak_mb']:.0f} MB",
            between(found[name]["a_over_a"]),
        )
        for name in names[1:6]
    ]
    lines.append(
        Line(
            f"opening the metrics of {asked.rows // asked.a_step:,} steps",
            f"{1000 * found['all lines of metrics']['least_s']:.0f} ms",
            "nothing",
            between(found["all lines of metrics"]["a_over_a"]),
        )
    )
    header = ["question", "least, s", "peak memory, MB", "A/A"]
    more = {"rows": asked.rows, "parts": len(files), "record_mb": record_mb, "questions": found}
    note = f"{asked.rows:,} completions in {len(files):,} parts, {record_mb:.0f} MB on disk."
    measuring.save("reading", asked, stamped, lines, (header, rows), more, [note])


if __name__ == "__main__":
    main()
