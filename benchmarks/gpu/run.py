"""The GPU suite: what the workbench does on a GPU, measured; and the same at toy size on a CPU.

    python benchmarks/gpu/run.py                      every part, as far as --minutes go; the same command goes on
    python benchmarks/gpu/run.py --part arms          one part
    python benchmarks/gpu/run.py --part arms --only nf4-auto-512      the arms whose name holds that
    python benchmarks/gpu/run.py --device cpu         the toy: shows that everything runs, measures nothing
    python benchmarks/gpu/table.py                    what was found

Parts:
    notebooks  the embedded policy through notebooks 01 to 05
    controls   steering, stop and continue, export with its proof
    arms       step time and memory: {TRL, Unsloth} x {bf16, nf4} x generation {auto, trl}, random weights of a 1.5 B model
    memory     the memory estimate against the peaks that the arms measured
    learning   a policy of about 50 M parameters, taught here, then GRPO

Nothing asks for a network. Results are JSON files in --out, written again after everything that was measured: a call
that is killed leaves what it had, and the next one goes on from there. The exit status is 1 if a check failed.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if sys.path[0] == str(Path(__file__).resolve().parent):
    # Beside this script lie modules with everyday names; they are to be found as gpu.memory, and never as memory.
    sys.path[:1] = [str(ROOT / "benchmarks"), str(ROOT)]

PARTS = ("notebooks", "controls", "arms", "memory", "learning")


def main(words: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    asked = _parser().parse_args(words)
    from gpu.setting import FULL, TOY, Setting

    toy = asked.toy or asked.device == "cpu"
    out = (asked.out or ROOT / "runs" / "gpu_suite" / (f"{asked.device}-toy" if toy else asked.device)).resolve()
    setting = Setting(
        device=asked.device,
        sizes=TOY if toy else FULL,
        out=out,
        work=(asked.work or out / "work").resolve(),
        deadline=time.monotonic() + 60 * asked.minutes,
        # Importing the libraries takes longer than the toy itself; and on a CPU Unsloth leaves TRL's trainer as it is.
        fresh=asked.device == "cuda",
        only=tuple(asked.only),
    )
    if asked.plan:
        from gpu.arms import planned

        print(*(unit.name for unit in planned(setting) if setting.wants(unit.name)), sep="\n")
        return 0
    if asked.device == "cuda" and not _has_gpu():
        print("--device cuda: torch finds no GPU here; the toy runs with --device cpu", file=sys.stderr)
        return 2
    setting.out.mkdir(parents=True, exist_ok=True)
    setting.work.mkdir(parents=True, exist_ok=True)
    (setting.work / ".gitignore").write_text("*\n", encoding="utf-8")  # models and runs are no results
    os.environ["WORKBENCH_HOME"] = str(setting.work)
    os.environ["HF_HUB_OFFLINE"] = "1"
    if asked.job:
        return _job(setting, asked.job)
    return _parts(setting, asked.part or PARTS)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python benchmarks/gpu/run.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="default: cuda; cpu runs the toy")
    parser.add_argument("--part", action="append", choices=PARTS, help="one part; several may be given (default: all)")
    parser.add_argument("--out", type=Path, help="folder for the JSON files (default: runs/gpu_suite/<device>)")
    parser.add_argument(
        "--work", type=Path, help="folder for models and runs, 5 GB; keep it between calls (default: OUT/work)"
    )
    parser.add_argument(
        "--minutes", type=float, default=9.5, help="begin nothing that would take longer (default: 9.5)"
    )
    parser.add_argument(
        "--toy", action="store_true", help="toy sizes on a GPU too: shows in minutes whether the suite runs"
    )
    parser.add_argument("--plan", action="store_true", help="print the arms in the order in which they are measured")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="TEXT",
        help="of the arms, those whose name holds it; may be repeated",
    )
    parser.add_argument(
        "--job", help=argparse.SUPPRESS
    )  # what a process of its own does: model, teach, or a unit's name
    return parser


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _job(setting, name: str) -> int:
    from gpu import arm, learning, units

    if name == "model":
        arm.build(setting)
    elif name == "teach":
        learning.teach(setting)
    else:
        arm.measure(setting, units.unit_of(name))
    return 0


def _parts(setting, parts: list[str]) -> int:
    from measuring import say

    from gpu.processes import own_process

    alone = not setting.fresh or len(parts) == 1
    if alone and set(parts) & {"controls", "learning", *([] if setting.fresh else ["arms"])}:
        from workbench.train.policy import trainer_classes

        # Before anything imports transformers or asks the GPU for its name: Unsloth sets up both when it is imported.
        trainer_classes("unsloth")
    failed = []
    for part in (name for name in PARTS if name in parts):
        if setting.left_s() <= 0:
            say(f"{part}: not begun, the time is over; the same command goes on")
            continue
        say(f"--- {part}")
        started = time.monotonic()
        if not alone and part != "memory":
            status, said = own_process(setting, part, "--part", part, limit_s=setting.left_s())
            say(said)
            if status is None:
                say(f"{part}: ended, the time is over; the same command goes on")
            elif status:
                failed.append(part)
        else:
            found = importlib.import_module(f"gpu.{part}").run(setting)
            wrong = [check for check in found.get("checks", []) if check["passed"] is False]
            wrong += [{"name": name, "found": error} for name, error in found.get("errors", {}).items()]
            for check in wrong:
                say(f"NOT SO: {check['name']}: {check['found']}")
            failed += [part] if wrong else []
        say(f"{part}: {time.monotonic() - started:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
