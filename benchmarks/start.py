"""How long it takes to start: `import workbench`, `workbench --help` and six commands that a person
waits for, against Python's own start.

    uv run python benchmarks/start.py [--rounds 7]

Every start is a fresh process, and the arms take turns; "nothing" is `python -c pass`. What an arm
costs is its least time less that of "nothing". Cold: the user's cache is empty, so that `plan` asks
the installed libraries for their settings; warm: it is as the start before left it. Python's
bytecode is there already, as after the first start.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time

import made_records
import measuring
from measuring import Line, ratio

NOTHING, IMPORT = "nothing", "import workbench"
TARGET_S = 0.15  # for the import
COMMAND = (
    "import sys; sys.argv = ['workbench', *sys.argv[1:]]\nfrom workbench.cli import"
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
COLD = ", cold"
for each in COMMANDS:
    for state in (COLD, ", warm"):
        ARMS[f"workbench {each}{state}"] = ("-c", COMMAND, *each.split())


def start(arm: str) -> float:
    """Seconds of one process, from its start to its end."""
    command = [sys.executable, *ARMS[arm]]
    with tempfile.TemporaryDirectory(prefix="workbench-benchmark-") as empty:
        own = {"XDG_CACHE_HOME": empty} if arm.endswith(COLD) else {}
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


def main() -> None:
    parser = measuring.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    asked = measuring.parse(parser, rounds=2)
    stamped = measuring.stamp()
    with measuring.empty_home():
        made_records.make(completions=640, a_step=64)
        for arm in ARMS:
            start(arm)  # bytecode
        seconds = measuring.in_rounds(
            list(ARMS), asked.rounds, start, lambda one: f"{1000 * one:.0f} ms"
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
    lines = [
        Line(
            arm, f"{over_ms[arm]:.0f} ms more", "`python -c pass`", f"{max(noise.values()):.1f} ms"
        )
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
