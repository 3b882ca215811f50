"""The GPU suite: what the workbench does on a GPU, measured; and the same at toy size on a CPU.

    python benchmarks/gpu/run.py                      every part, as far as --minutes go; the same
    command goes on python benchmarks/gpu/run.py --part arms          one part
    python benchmarks/gpu/run.py --part arms --only nf4-auto-512      the arms whose name holds that
    python benchmarks/gpu/run.py --device cpu         the toy: shows that everything runs, measures
    nothing python benchmarks/gpu/run.py --table              what was found, from the files in
    --out (or from an all.json)

Parts:
    notebooks  the embedded policy through notebooks 01 to 05
    controls   steering, stop and continue, export with its proof
    arms       step time and memory: {TRL, Unsloth} x {bf16, nf4} x generation {auto, trl}, random
    weights of a 1.5 B model memory     the memory estimate against the peaks that the arms measured
    learning   a policy of about 50 M parameters, taught here, then GRPO

Nothing asks for a network. Results are JSON files in --out, written again after everything that was
measured: a call that is killed leaves what it had, and the next one goes on from there; all.json
holds all of them. The exit status is 1 if a check failed.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if sys.path[0] == str(Path(__file__).resolve().parent):
    # Beside this script lie modules with everyday names; they are to be found as gpu.memory, and
    # never as memory.
    sys.path[:1] = [str(ROOT / "benchmarks"), str(ROOT)]

# these measure no times, so they can run side by side
BESIDE = ("notebooks", "controls", "learning")


def main(words: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    asked = _parser().parse_args(words)
    from gpu.setting import FULL, PARTS, TOY, Setting

    if asked.minutes <= 0:
        print(f"--minutes {asked.minutes:g}: more than 0 are needed", file=sys.stderr)
        return 2
    toy = asked.toy or asked.device == "cpu"
    out = (
        asked.out or ROOT / "runs" / "gpu_suite" / (f"{asked.device}-toy" if toy else asked.device)
    ).resolve()
    setting = Setting(
        device=asked.device,
        sizes=TOY if toy else FULL,
        out=out,
        work=(asked.work or out / "work").resolve(),
        deadline=time.monotonic() + 60 * asked.minutes,
        # Importing the libraries takes longer than the toy itself; and on a CPU Unsloth leaves
        # TRL's trainer as it is.
        fresh=asked.fresh or asked.device == "cuda",
        only=tuple(asked.only),
    )
    from gpu.arms import planned

    names = [unit.name for unit in planned(setting)]
    for text in asked.only:
        if not any(text in name for name in names):
            print(f"--only {text}: none of the arms: {', '.join(names)}", file=sys.stderr)
            return 2
    if asked.table:
        from gpu.table import markdown

        print(markdown(out), end="")
        return 0
    if asked.plan:
        print(*(name for name in names if setting.wants(name)), sep="\n")
        return 0
    if asked.device == "cuda" and not _has_gpu():
        print(
            "--device cuda: torch finds no GPU here; the toy runs with --device cpu",
            file=sys.stderr,
        )
        return 2
    setting.out.mkdir(parents=True, exist_ok=True)
    setting.work.mkdir(parents=True, exist_ok=True)
    # models and runs are no results
    (setting.work / ".gitignore").write_text("*\n", encoding="utf-8")
    os.environ["WORKBENCH_HOME"] = str(setting.work)
    os.environ["HF_HUB_OFFLINE"] = "1"
    if asked.job:
        return _job(setting, asked.job)
    return _parts(setting, asked.part or PARTS)


def _parser() -> argparse.ArgumentParser:
    from gpu.setting import PARTS

    parser = argparse.ArgumentParser(
        prog="python benchmarks/gpu/run.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="default: cuda; cpu runs the toy"
    )
    parser.add_argument(
        "--part",
        action="append",
        choices=PARTS,
        help="one part; several may be given (default: all)",
    )
    parser.add_argument(
        "--out", type=Path, help="folder for the JSON files (default: runs/gpu_suite/<device>)"
    )
    parser.add_argument(
        "--work",
        type=Path,
        help="folder for models and runs, 5 GB; keep it between calls (default: OUT/work)",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=9.5,
        help="begin nothing that would take longer (default: 9.5)",
    )
    parser.add_argument(
        "--toy",
        action="store_true",
        help="toy sizes on a GPU too: shows in minutes whether the suite runs",
    )
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="a process for every part and arm on a CPU, too, as there is on a GPU",
    )
    parser.add_argument(
        "--table", action="store_true", help="print what was found, and run nothing"
    )
    parser.add_argument(
        "--plan", action="store_true", help="print the arms in the order in which they are measured"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="TEXT",
        help="of the arms, those whose name holds it; may be repeated",
    )
    # what a process of its own does: model, teach, or units' names
    parser.add_argument("--job", help=argparse.SUPPRESS)
    return parser


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _job(setting, name: str) -> int:
    from gpu import learning, one_unit, units

    if name == "model":
        one_unit.build(setting)
    elif name == "teach":
        learning.teach(setting)
    else:
        one_unit.measure(setting, [units.unit_of(each) for each in name.split(",")])
    return 0


def _parts(setting, parts: Sequence[str]) -> int:
    from gpu.setting import PARTS

    if setting.fresh and len(parts) > 1:
        turns = [
            [name for name in BESIDE if name in parts],
            *([name] for name in ("arms", "memory") if name in parts),
        ]
        run = _in_own_process
    else:
        turns = [[name] for name in PARTS if name in parts]
        run = _here
        if set(parts) & {"controls", "learning", *([] if setting.fresh else ["arms"])}:
            from workbench.training.policy import trainer_classes

            # Before anything imports transformers or asks the GPU for its name: Unsloth sets up
            # both when it is imported.
            trainer_classes("unsloth")
    held = []
    for turn in filter(None, turns):
        if len(turn) == 1:
            held.append(_timed(run, setting, turn[0], beside=False))
        else:
            with ThreadPoolExecutor(len(turn)) as pool:  # each thread waits for a process
                held += pool.map(functools.partial(_timed, run, setting, beside=True), turn)
        setting.collect()
    return 0 if all(held) else 1


def _timed(run: Callable[..., bool], setting, part: str, beside: bool) -> bool:
    from measuring import say

    if setting.left_s() <= 0:
        say(f"{part}: not begun, the time is over; the same command goes on")
        return True
    say(f"--- {part}")
    started = time.monotonic()
    held = run(setting, part, beside)
    say(f"{part}: {time.monotonic() - started:.1f} s")
    return held


def _in_own_process(setting, part: str, beside: bool) -> bool:
    """Whether a part held, or was ended by the time."""
    from measuring import say

    from gpu.processes import own_process

    environment = {}
    # Unsloth writes the code that it compiles into one folder, whoever else is writing there
    if beside:
        folder = setting.work / "compiled" / part
        folder.mkdir(parents=True, exist_ok=True)
        environment["UNSLOTH_COMPILE_LOCATION"] = str(folder)
    status, said = own_process(
        setting, part, "--part", part, limit_s=setting.left_s(), **environment
    )
    say(said)
    if status is None:
        say(f"{part}: ended, the time is over; the same command goes on")
    return not status


def _here(setting, part: str, beside: bool) -> bool:
    """Whether a part held."""
    from measuring import say

    found = importlib.import_module(f"gpu.{part}").run(setting)
    wrong = [check for check in found.get("checks", []) if check["passed"] is False]
    wrong += [{"name": name, "found": error} for name, error in found.get("errors", {}).items()]
    for check in wrong:
        say(f"NOT SO: {check['name']}: {check['found']}")
    return not wrong


if __name__ == "__main__":
    sys.exit(main())
