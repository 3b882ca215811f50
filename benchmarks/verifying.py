"""Are runs the same to the bit when their passports are trained again, and is one changed bit seen wherever it is?

    uv run python benchmarks/verifying.py [--flips 1000] [--by ../another_clone/.venv/bin/python]

Twenty short runs (seeds, losses, group sizes, LoRA ranks, 4 bits and 16) are trained and exported: nine recipes with one
thread and with two, and two through Unsloth. Then `verify(..., rerun=True)` trains each again in a process of its own, from the
passport alone: the runs' folders are taken away before. And of one artefact one bit is changed at a time, at random places.
`--by`: the runs are trained in another environment, by its Python and with the workbench that is installed there.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import measuring
from measuring import Line

_GRPO = {"num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 48, "learning_rate": 1e-3, "beta": 0.01}
_16BIT = {"load_in_4bit": False}
CASES: dict[str, dict[str, Any]] = {
    "dapo, 4 bits": {},
    "another seed": {"seed": 1},
    "dr_grpo": {"seed": 2, "grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"}},
    "grpo, G 8": {"seed": 3, "grpo": {"loss_type": "grpo", "num_generations": 8}},
    "bnpo, 16 bits": {"seed": 4, "policy": _16BIT, "grpo": {"loss_type": "bnpo", "beta": 0.0}},
    "64 completions": {"seed": 5, "grpo": {"num_generations": 8, "per_device_train_batch_size": 64}},
    "LoRA r 4, two targets": {"seed": 6, "lora": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}},
    "LoRA r 32, dropout, 16 bits": {"seed": 7, "policy": _16BIT, "lora": {"r": 32, "lora_alpha": 32, "lora_dropout": 0.1}},
    "two iterations, cosine": {"seed": 8, "grpo": {"num_iterations": 2, "lr_scheduler_type": "cosine"}},
}
UNSLOTH = {"Unsloth": {"seed": 9}, "Unsloth, G 8": {"seed": 10, "grpo": {"num_generations": 8}}}
THREADS = (1, 2)


def make(cases: dict[str, dict[str, Any]], backend: str, steps: int, out: Path) -> None:
    """Train and export runs, one after the other, in this process; their artefacts in `out`, one folder each."""
    from workbench.exporting.making import export
    from workbench.recipe import Recipe
    from workbench.training.trainer import train

    for number, (name, said) in enumerate(cases.items()):
        asked = {part: own for part, own in said.items() if part not in ("policy", "grpo")}
        asked |= {"policy": {"backend": backend, **said.get("policy", {})}, "run_name": f"run-{number}"}
        run = train(Recipe.of({**asked, "grpo": {**_GRPO, "max_steps": steps, **said.get("grpo", {})}}))
        shutil.copytree(export(run, ["adapter"])["adapter"].path, out / name)
        shutil.rmtree(run.path)


def flipped(artefact: Path, flips: int) -> int:
    """Of so many changes of one bit somewhere in an artefact, those that are seen."""
    from workbench.errors import ExportError
    from workbench.exporting.verifying import verify

    chance, files, seen = random.Random(0), sorted(file for file in artefact.rglob("*") if file.is_file()), 0
    for number in range(flips):
        file = files[number % len(files)]  # as often in a small file as in a large one
        whole = file.read_bytes()
        place = chance.randrange(len(whole))
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << chance.randrange(8)]) + whole[place + 1 :])
        try:
            seen += any(line.startswith(f"{file.name} was changed") for line in verify(artefact)[0].differs)
        except ExportError as error:
            seen += file.name in error.value
        file.write_bytes(whole)
    return seen


def main() -> None:
    parser = measuring.arguments(__doc__)
    parser.add_argument("--steps", type=int, default=3, help="of a run")
    parser.add_argument("--flips", type=int, default=1000, help="changes of one bit")
    parser.add_argument("--runs", type=int, default=len(CASES), help="recipes of the plain backend, each with 1 and 2 threads")
    parser.add_argument("--by", metavar="PYTHON", help="of the environment that trains the runs (this one)")
    parser.add_argument("--make", metavar="BACKEND", help="train and export the runs of a backend here")
    parser.add_argument("--folder", type=Path, help="with --make: where their artefacts go")
    asked = measuring.parse(parser, steps=1, flips=20, runs=1)
    python, asked.by = asked.by or sys.executable, "another environment" if asked.by else "this one"
    plain = dict(list(CASES.items())[: asked.runs])
    if asked.make:
        make(plain if asked.make == "transformers" else UNSLOTH, asked.make, asked.steps, asked.folder)
        print("{}")
        return
    from workbench.exporting.passport import read_passport
    from workbench.exporting.verifying import verify

    stamped, found = measuring.stamp(), []
    with measuring.empty_home() as home:
        groups = [(f"{threads}", "transformers", str(threads)) for threads in THREADS]
        groups += [("unsloth", "unsloth", os.environ.get("OMP_NUM_THREADS", "1"))] * (not asked.quick)
        for group, backend, threads in groups:
            words = ["--make", backend, "--folder", str(home / group), "--steps", str(asked.steps), "--runs", str(asked.runs)]
            measuring.own_process("verifying.py", *words, python=python, OMP_NUM_THREADS=threads)
            for artefact in sorted((home / group).iterdir()):
                began = time.perf_counter()
                [result] = verify(artefact, rerun=True)
                own = {"run": artefact.name, "backend": backend, "threads": int(threads), "reproduced": result.passed}
                own |= {"differs": list(result.differs), "adapter": read_passport(artefact)["adapter"]["sha256"]}
                found.append(own | {"seconds": round(time.perf_counter() - began, 1)})
                measuring.say(f"{group}, {artefact.name}: {'reproduced' if result.passed else result}")
        seen = flipped(artefact, asked.flips)
    adapters: dict[str, set[str]] = {}
    for own in found:
        if own["backend"] == "transformers":
            adapters.setdefault(own["run"], set()).add(own["adapter"])
    alike = [name for name, sums in adapters.items() if len(sums) == 1]
    good = sum(own["reproduced"] for own in found)
    said = ["to the bit" if own["reproduced"] else "; ".join(own["differs"]) for own in found]
    rows = [[own["run"], own["backend"], own["threads"], how, own["seconds"]] for own, how in zip(found, said, strict=True)]
    lines = [
        Line("runs trained again from their passports", f"{good} of {len(found)} to the bit", "the run", "none"),
        Line("one bit of an artefact changed", f"{seen} of {asked.flips} seen and named", "as exported", "none"),
    ]
    note = (
        f"The runs were trained in {asked.by}, and again here. "
        f"Threads are put to what they were. With another number of them a run need not be the same: of {len(adapters)} recipes, "
        f"{len(alike)} gave the same adapter with 1 thread and with 2"
        + (f", and not: {', '.join(name for name in adapters if name not in alike)}" if len(alike) < len(adapters) else "")
        + "."
    )
    header = ["run", "backend", "threads", "metrics, completions, adapter", "seconds"]
    measuring.save(
        "verifying", asked, stamped, lines, (header, rows), {"runs": found, "flips": asked.flips, "seen": seen}, [note]
    )


if __name__ == "__main__":
    main()
