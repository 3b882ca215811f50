"""What eight short runs leave, to compare a change of the code with what was there before.

    python tools/goldens.py before                  # on the commit before, and
    python tools/goldens.py after --against before  # on the one after: names every difference, and
    exits 1 if there is one

Each run trains the embedded policy for a few steps on the CPU, in a process of its own. What is
kept of it: the rows of metrics without what a clock said, the sum of the final adapter's tensors,
the plan's text without what a machine decides, the events, and the names (no values) of what the
manifest and the last checkpoint hold. The bits are those of one machine: another CPU rounds
otherwise, so no result is committed.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import hashlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

SMALL: dict[str, Any] = {
    "max_steps": 4, "num_generations": 4, "per_device_train_batch_size": 8,
    "max_completion_length": 24,
    "learning_rate": 1e-3, "save_steps": 2, "logging_steps": 1, "scale_rewards": "group",
}  # fmt: skip
STAGES = [
    {"name": "first", "steps": 2},
    {
        "name": "second",
        "steps": 2,
        "grpo": {"beta": 0.05},
        "reward_weights": {"correctness_reward": 3.0},
    },
]
RECIPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "stages": {"stages": STAGES},
    "adaptive": {"adaptive_weights": {"correctness_reward": {"every": 2, "below": 1.0}}},
    "eval_every": {"eval_every": 2, "eval_prompts": 4},
    "warm_start": {"warm_start": {"samples": 4, "epochs": 1}},
    "kl": {"grpo": {"beta": 0.05, "num_iterations": 2, "loss_type": "bnpo"}},
    "transformers": {"policy": {"backend": "transformers"}},
    "attach": {},
}
CLOCKS = (
    "time/",
    "step_time",
    "time",
    "minutes",
    "paused_s",
    "seconds",
    "_s",
    "share",
    "samples_per_second",
)
OF_A_MACHINE = ("memory", "thread", "GPU", "CPU", "cores", "device")


def steady(content: Any) -> Any:
    """Without what a clock, a random name or a folder says."""
    if isinstance(content, dict):
        kept = {
            name: steady(value) for name, value in content.items() if not name.startswith(CLOCKS)
        }
        return {
            name: value
            for name, value in kept.items()
            if not name.endswith(("_s", "id", "seconds"))
        }
    return [steady(item) for item in content] if isinstance(content, list) else content


def names(content: Any, path: str = "") -> list[str]:
    """The dotted names of all leaves."""
    if not isinstance(content, dict) or not content:
        return [path]
    return [
        name
        for key, value in content.items()
        for name in names(value, f"{path}.{key}" if path else str(key))
    ]


def sum_of_tensors(file: Path) -> str:
    from safetensors.numpy import load_file

    digest = hashlib.sha256()
    for name, tensor in sorted(load_file(file).items()):
        digest.update(f"{name} {tensor.dtype} {tensor.shape}".encode() + tensor.tobytes())
    return digest.hexdigest()


def train(name: str, folder: Path) -> None:
    """Train one of the recipes, and leave what is kept of it in `folder`."""
    import workbench as wb

    text = ""
    if name == "attach":
        trainer = strangers_trainer(folder / "work")
        run = wb.attach(trainer, run_name=name, watchers=[], runs=folder / "runs")
        trainer.train()
    else:
        own = RECIPES[name]
        grpo = SMALL | own.get("grpo", {})
        policy = {"load_in_4bit": name in ("plain", "stages"), **own.get("policy", {})}
        recipe = wb.Recipe(
            **{
                **own,
                "run_name": name,
                "task": "arithmetic",
                "grpo": grpo,
                "policy": policy,
                "seed": 3,
            }
        )
        lines = str(dataclasses.replace(wb.plan(recipe), memory=None)).splitlines()
        text = "\n".join(line for line in lines if not any(word in line for word in OF_A_MACHINE))
        run = wb.train(recipe, watchers=[], runs=folder / "runs")
    states = sorted(
        run.checkpoints.glob("checkpoint-*/state.json"), key=lambda file: int(file.parent.name[11:])
    )
    state = json.loads(states[-1].read_text()) if states else {}
    kept = {
        "metrics": steady(run.metrics()),
        "adapter": sum_of_tensors(run.final / "adapter_model.safetensors"),
        "plan": text.splitlines(),
        "events": steady(run.events()),
        "manifest": sorted(names(run.manifest())),
        "state": sorted(names({key: value for key, value in state.items() if key != "files"})),
    }
    text = json.dumps(kept, indent=1, sort_keys=True).replace(str(folder), "FOLDER")
    (folder / f"{name}.json").write_text(text + "\n")
    shutil.rmtree(folder / "runs")


def strangers_trainer(folder: Path) -> Any:
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from trl import GRPOConfig, GRPOTrainer

    from workbench.tiny import MODEL_DIR
    from workbench.tiny.task import task

    def has_answer(completions: list[Any], answer: list[str], **_: Any) -> list[float | None]:
        return [
            float(right in text[0]["content"])
            for text, right in zip(completions, answer, strict=True)
        ]

    torch.manual_seed(3)  # the adapter is made before the trainer's own seed is set
    rows = Dataset.from_list(
        [{"prompt": row["prompt"], "answer": row["answer"]} for row in task(16, 2).rows]
    )
    config = GRPOConfig(output_dir=str(folder), report_to="none", seed=3, use_cpu=True, **SMALL)
    lora = LoraConfig(
        r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"
    )
    return GRPOTrainer(
        model=str(MODEL_DIR),
        reward_funcs=has_answer,
        args=config,
        train_dataset=rows,
        peft_config=lora,
    )


def forked(work: Any, *arguments: Any) -> bool:
    """Whether it went well in a copy of this process, which saves importing the libraries for every
    run.
    """
    sys.stdout.flush()
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    try:
        work(*arguments)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        os._exit(1)
    os._exit(0)


def train_all(backend: str, chosen: list[str], folder: Path) -> None:
    from workbench.training.policy import trainer_classes

    trainer_classes(backend)
    failed = [name for name in chosen if not forked(train, name, folder)]
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def differences(folder: Path, other: Path, chosen: list[str]) -> list[str]:
    lines: list[str] = []
    for name in chosen:
        mine, theirs = (
            (where / f"{name}.json").read_text().splitlines() for where in (folder, other)
        )
        lines += difflib.unified_diff(
            theirs, mine, f"{other.name}/{name}", f"{folder.name}/{name}", lineterm="", n=2
        )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--only", nargs="+", choices=RECIPES, default=list(RECIPES))
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["WORKBENCH_HOME"] = str(folder)
    # without Unsloth in the process
    plain = [name for name in given.only if name in ("transformers", "attach")]
    unsloths = [name for name in given.only if name not in plain]
    if not (
        forked(train_all, "unsloth", unsloths, folder)
        and forked(train_all, "transformers", plain, folder)
    ):
        return 2
    found = differences(folder, given.against, given.only) if given.against else []
    print(*found, sep="\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
