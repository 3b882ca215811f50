"""How long it takes to start: `import workbench`, `workbench --help`, six commands that a person
waits for, and a training until its first step, against Python's own start.

    uv run python benchmarks/start.py [--rounds 7]

Every start is a fresh process, and the arms take turns; "nothing" is `python -c pass`. What an arm
costs is its least time less that of "nothing". Cold: the user's cache is empty, so that `plan` asks
the installed libraries for their settings; warm: it is as the start before left it. After a
restart: no file is in the machine's memory any more (rounds of their own, as root on Linux only).
What is said as A/A is that of "nothing" and the import, or median less least of the arm, if larger.
Python's bytecode is there already, as after the first start. A training is ended when its first
step is in the record; beside it stands what its libraries alone take to import.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import made_records
import measuring
from measuring import Line, ratio

NOTHING, IMPORT = "nothing", "import workbench"
TARGET_S = 0.15  # for the import
COMMAND = (
    "import sys; sys.argv = ['workbench', *sys.argv[1:]]\nfrom workbench.commands.cli import"
    " main\nsys.exit(main())"
)
ARMS = {
    NOTHING: ("-c", "pass"),
    f"{NOTHING} again": ("-c", "pass"),
    IMPORT: ("-c", "import workbench"),
    f"{IMPORT} again": ("-c", "import workbench"),
    "workbench --help": ("-c", COMMAND, "--help"),
}
COMMANDS = (
    "plan cpu", "check arithmetic", "probe arithmetic", "report recorded", "explain clip_ratio",
    "eval --help",
)  # fmt: skip
COLD, RESTARTED = ", cold", ", after a restart"
MEMORY_OF_FILES = Path("/proc/sys/vm/drop_caches")
STATES = (COLD, RESTARTED, ", warm") if os.access(MEMORY_OF_FILES, os.W_OK) else (COLD, ", warm")
if RESTARTED in STATES:
    ARMS[f"{NOTHING}{RESTARTED}"] = ("-c", "pass")
IMPORTS = {"unsloth": "import unsloth, trl.trainer.grpo_trainer", "transformers":
    "import torch, datasets, peft, bitsandbytes, trl.trainer.grpo_trainer"}  # fmt: skip
FIRST = ", until the first step"
for backend, code in IMPORTS.items():
    ARMS[f"the libraries of {backend}"] = ("-c", code)
    ARMS[f"workbench train, {backend}{FIRST}"] = (
        "-c", COMMAND, "train", "workbench/tiny/recipe.yaml", "--run-name", "first",
        "--set", f"policy.backend={backend}", "--set", "eval_every=null", "--runs",
    )  # fmt: skip
for each in COMMANDS:
    for state in STATES:
        ARMS[f"workbench {each}{state}"] = ("-c", COMMAND, *each.split())


def start(arm: str) -> float:
    """Seconds of one process, from its start to its end."""
    command = [sys.executable, *ARMS[arm]]
    with tempfile.TemporaryDirectory(prefix="workbench-benchmark-") as empty:
        if arm.endswith(FIRST):
            return first_step(command, Path(empty))
        own = {"XDG_CACHE_HOME": empty} if arm.endswith(COLD) else {}
        if arm.endswith(RESTARTED):
            os.sync()
            MEMORY_OF_FILES.write_text("3", encoding="ascii")
        started = time.perf_counter()
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd=measuring.HERE.parent,
            env={**os.environ, **own},
        )
        seconds = time.perf_counter() - started
    if done.returncode:
        raise RuntimeError(
            f"{arm} ended with {done.returncode}: {done.stderr.strip() or done.stdout.strip()}"
        )
    return seconds


def first_step(command: list[str], runs: Path) -> float:
    """Seconds until a training's first step is in its record."""
    started, metrics = time.perf_counter(), runs / "first" / "metrics.jsonl"
    process = subprocess.Popen(
        [*command, str(runs)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=measuring.HERE.parent,
    )
    while not (metrics.is_file() and metrics.stat().st_size):
        if process.poll() is not None:
            raise RuntimeError(
                f"the training ended with {process.returncode}: {process.stdout.read()}"
            )
        time.sleep(0.01)
    seconds = time.perf_counter() - started
    process.kill()
    process.wait()
    return seconds


def main() -> None:
    parser = measuring.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    asked = measuring.parse(parser, rounds=2)
    stamped = measuring.stamp()
    # With it every start would compile the workbench's modules anew: 0.2 s of a report's.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with measuring.empty_home():
        made_records.make(completions=640, a_step=64)
        for arm in ARMS:
            start(arm)  # bytecode
        seconds: dict[str, list[float]] = {}
        for restarted in (False, True):
            arms = [arm for arm in ARMS if arm.endswith(RESTARTED) == restarted]
            seconds |= measuring.in_rounds(
                arms, asked.rounds, start, lambda one: f"{1000 * one:.0f} ms"
            )
    least = {arm: min(own) for arm, own in seconds.items()}
    base = min(least[NOTHING], least[f"{NOTHING} again"])
    over_ms = {arm: 1000 * (value - base) for arm, value in least.items()}
    # Differences, as what Python itself takes is in both.
    noise = {arm: 1000 * abs(least[arm] - least[f"{arm} again"]) for arm in (NOTHING, IMPORT)}
    ratios = {arm: ratio(seconds[arm], seconds[f"{arm} again"]) for arm in (NOTHING, IMPORT)}
    rows = [
        [
            arm,
            f"{1000 * least[arm]:.0f}",
            f"{1000 * statistics.median(own):.0f}",
            f"{over_ms[arm]:.1f}",
        ]
        for arm, own in seconds.items()
    ]
    # Of an arm that is not measured twice: how far its rounds lie apart.
    apart = {
        arm: max(*noise.values(), 1000 * (statistics.median(own) - least[arm]))
        for arm, own in seconds.items()
    }
    lines = [
        Line(arm, f"{over_ms[arm]:.0f} ms more", "`python -c pass`", f"{apart[arm]:.1f} ms")
        for arm in ARMS
        if arm == IMPORT or arm.startswith("workbench")
    ]
    found = {
        "target_import_s": TARGET_S,
        "over_python_ms": over_ms,
        "a_over_a_ms": noise,
        "a_over_a": ratios,
        "seconds": seconds,
    }
    measuring.save(
        "start",
        asked,
        stamped,
        lines,
        (["start", "least, ms", "median, ms", "more than nothing, ms"], rows),
        found,
    )


if __name__ == "__main__":
    main()
