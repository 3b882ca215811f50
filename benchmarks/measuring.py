"""What the benchmarks share: the stamp of a result, arms run in rotating order, ratios with their
noise, and where they go.

An arm is one of the things that are compared. The one that the others are compared with is measured
twice in every round, as two arms; the ratio of those two, round by round, is the noise (A/A), and a
difference inside it is none.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

HERE = Path(__file__).parent
RESULTS = HERE / "results"
Found = TypeVar("Found")


class Ratio(NamedTuple):
    """How much of one arm's time another takes: of the least of each, and the range of the same
    ratio by round.
    """

    of_least: float
    low: float
    high: float


class Line(NamedTuple):
    """A line of the table of all benchmarks, in words; `noise` is the A/A interval."""

    what: str
    figure: str
    against: str
    noise: str


# --- the command line
# ---------------------------------------------------------------------------------------------


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """A parser whose help is the script's own text, with the options that every benchmark has."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="toy sizes: shows that it runs, and measures nothing"
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="folder for the JSON (default: results/ beside the script; quick: none)",
    )
    return parser


def parse(
    parser: argparse.ArgumentParser, words: Sequence[str] | None = None, **quick: Any
) -> argparse.Namespace:
    """What was asked for; with `--quick`, these values are the defaults."""
    if parser.parse_known_args(words)[0].quick:
        parser.set_defaults(**quick)
    asked = parser.parse_args(words)
    asked.options = _options(parser, asked)
    if asked.out is None and not asked.quick:
        asked.out = RESULTS
    return asked


def _options(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> list[str]:
    # What was asked for beside the defaults, as words of a command; where files are is nobody's.
    options: list[str] = []
    for key, value in vars(asked).items():
        if value == parser.get_default(key) or isinstance(value, Path):
            continue
        options.append(f"--{key.replace('_', '-')}")
        if value is not True:
            options += map(str, value if isinstance(value, list) else [value])
    return options


def say(text: str) -> None:
    """A line of progress, on stderr."""
    print(text, file=sys.stderr, flush=True)


# --- measuring
# --------------------------------------------------------------------------------------------------


def stamp() -> dict[str, Any]:
    """Date, machine, versions and commit, and the load of the machine before anything was
    measured.
    """
    from workbench.run.machine import versions

    return {
        "date": date.today().isoformat(),
        "machine": (
            f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, {_processor()}"
        ),
        "load_before": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "versions": {**versions(), "commit": _commit()},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), ""
    )


def _commit() -> str | None:
    # Results and prose that an earlier benchmark has just written do not make what is measured
    # another.
    def git(*words: str) -> str:
        command = ["git", "-C", str(HERE.parent), *words]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()

    try:
        changed = git(
            "status",
            "--porcelain",
            "--",
            ".",
            ":!benchmarks/results",
            ":!benchmarks/**/results",
            ":!*.md",
        )
        return git("rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def in_rounds(
    arms: Sequence[str],
    rounds: int,
    measure: Callable[[str], Found],
    told: Callable[[Found], str] | None = None,
) -> dict[str, list[Found]]:
    """Measure every arm once a round; each round begins with another arm, so that none is always
    first.

    Args:
        told: what to say of a measurement, on stderr; None: nothing.
    """
    found: dict[str, list[Found]] = {arm: [] for arm in arms}
    for turn in range(rounds):
        first = turn % len(arms)
        for arm in (*arms[first:], *arms[:first]):
            gc.collect()  # one arm's garbage is not another's time
            found[arm].append(measure(arm))
            if told is not None:
                say(f"round {turn + 1} of {rounds}, {arm}: {told(found[arm][-1])}")
    return found


def ratio(first: Sequence[float], second: Sequence[float]) -> Ratio:
    """`first` over `second`, one value a round each: of the least of each, and the range over the
    rounds.
    """
    by_round = [one / other for one, other in zip(first, second, strict=True)]
    return Ratio(min(first) / min(second), min(by_round), max(by_round))


def own_process(script: str, *words: str, python: str = sys.executable, **environment: str) -> Any:
    """What a script of this folder finds in a process of its own: the last line that it prints, as
    JSON.

    Args:
        python: of the environment to run it in.

    Raises:
        subprocess.CalledProcessError: if it failed; what it said is on stderr.
    """
    command = [python, str(HERE / script), *words]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, **environment}
    )
    return json.loads(done.stdout.splitlines()[-1])


def peak_mb() -> float:
    """The most memory that this process has held, in MiB."""
    # getrusage counts, on Linux, what the process that started this one held as it did so.
    with contextlib.suppress(OSError):
        status = Path("/proc/self/status").read_text()
        return int(re.search(r"^VmHWM:\s+(\d+) kB", status, re.M)[1]) / 1024
    import resource

    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return held / (2**20 if sys.platform == "darwin" else 2**10)


@contextlib.contextmanager
def empty_home() -> Iterator[Path]:
    """A folder for runs (WORKBENCH_HOME) that is taken away again; meanwhile nothing is asked of a
    model hub.
    """
    own = {"HF_HUB_OFFLINE": os.environ.get("HF_HUB_OFFLINE", "1")}
    before = {name: os.environ.get(name) for name in (*own, "WORKBENCH_HOME")}
    with tempfile.TemporaryDirectory(prefix="workbench-benchmark-") as home:
        os.environ.update(own, WORKBENCH_HOME=home)
        try:
            yield Path(home)
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


# --- what is left
# -------------------------------------------------------------------------------------------------


def between(noise: Ratio | Sequence[float]) -> str:
    """An interval in words: "0.96 to 1.01"."""
    low, high = noise[-2:]
    return f"{low:.2f} to {high:.2f}"


def markdown(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table for the README."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(
        "| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def with_before(lines: list[dict[str, str]], file: Path) -> list[dict[str, str]]:
    """The lines, each with the figure that the file has had of the same until now, and its date."""
    if not file.is_file():
        return lines
    old = json.loads(file.read_text(encoding="utf-8"))
    figures = {line["what"]: f"{line['figure']} ({old['date']})" for line in old.get("lines", ())}
    return [{**line, "before": figures.get(line["what"], "")} for line in lines]


def save(
    name: str,
    asked: argparse.Namespace,
    stamped: dict[str, Any],
    lines: Sequence[Line],
    table: tuple[Sequence[str], Sequence[Sequence[Any]]],
    found: dict[str, Any],
    notes: Sequence[str] = (),
) -> Path | None:
    """Print the table, and write the result as `name.json`; the file, or None if none is wanted.

    Args:
        stamped: `stamp()` from before the measurement.
        lines: for the table of all benchmarks.
        table: header and rows, for the script's own section.
        found: the numbers behind.
        notes: sentences under that table.
    """
    from workbench.base.workspace import write_json
    from workbench.views.tables import Table

    print(Table(*table), *notes, sep="\n")
    for line in lines:
        print(f"{line.what}: {line.figure} (against {line.against}; A/A {line.noise})")
    if asked.out is None:
        return None
    content = {
        **stamped,
        "command": shlex.join(["uv", "run", "python", f"benchmarks/{name}.py", *asked.options]),
        "asked": {
            key: value for key, value in vars(asked).items() if key not in ("out", "options")
        },
        "lines": with_before([line._asdict() for line in lines], asked.out / f"{name}.json"),
        "table": {
            "header": list(table[0]),
            "rows": [[str(cell) for cell in row] for row in table[1]],
        },
        "notes": list(notes),
        **found,
    }
    return write_json(asked.out / f"{name}.json", content)
