"""(a) The embedded policy through the five notebooks, in real kernels, as `workbench demo` does
it.
"""

from __future__ import annotations

from typing import Any

from measuring import say

from gpu.setting import Checks, Setting, trainer_is


def run(setting: Setting) -> dict[str, Any]:
    """Execute 01 to 05, look at what they left, and leave `notebooks.json`. A run that was whole is
    not repeated.
    """
    from workbench.commands.demo import run_notebooks
    from workbench.run.directory import open_run

    before = setting.read("notebooks.json")
    if before and before["done"]:
        say("notebooks: done before")
        return before
    found: dict[str, Any] = {"part": "notebooks", "done": False, "cells": {}, "checks": []}

    def on_cell(stem: str, done: int, total: int) -> None:
        if not done or done == total:
            say(f"notebook {stem}: {done} of {total} cells")
        found["cells"][stem] = f"{done} of {total}"
        setting.write("notebooks.json", found)

    name = "demo-cuda" if setting.cuda else "demo-cpu"
    try:
        result = run_notebooks(name, parameters=setting.sizes.notebooks, on_cell=on_cell)
    except Exception as error:
        found |= {"error": f"{type(error).__name__}: {error}", "checks": [_ran(False, str(error))]}
        setting.write("notebooks.json", found)
        return found
    run_directory = open_run(result["run"])
    checks = judge(run_directory, cuda=setting.cuda, gain=setting.sizes.gain)
    found |= {
        "done": True,
        "result": result,
        "minutes": run_directory.read_json("demo.json")["minutes_by_notebook"],
        "manifest": {
            key: run_directory.manifest().get(key)
            for key in ("policy", "trainer", "memory", "generation")
        },
        "checks": [_ran(True), *checks.found],
    }
    setting.write("notebooks.json", found)
    return found


def _ran(passed: bool, what: str | None = None) -> dict[str, Any]:
    checks = Checks()
    checks.note("all five notebooks ran", passed, what)
    return checks.found[0]


def judge(run: Any, *, cuda: bool, gain: bool) -> Checks:
    """What a run of the notebooks must show.

    Args:
        cuda: whether it should have trained on a GPU, with Unsloth's own trainer.
        gain: whether it was long enough to demand a gain.
    """
    manifest, evaluation = run.manifest(), run.read_json("evaluation.json")
    policy, trainer = manifest["policy"], manifest["trainer"]
    checks = Checks()
    checks.note("the run finished", run.result()["status"] == "finished", run.result()["status"])
    # On a CPU Unsloth leaves TRL's trainer in its place.
    checks.note(
        "the trainer is Unsloth's" if cuda else "the trainer is TRL's", trainer_is(trainer,
        "unsloth" if cuda else "trl"),
        trainer,
    )  # fmt: skip
    on_cpu = policy["device"].startswith("the CPU")
    checks.note(
        "the policy was on the GPU" if cuda else "the policy was on the CPU",
        on_cpu != cuda,
        policy["device"],
    )
    checks.note(
        "its layers are in 4 bits",
        policy["precision"] == "nf4" and policy["linear4bit"] > 0,
        policy["linear4bit"],
    )
    types = ("bfloat16", "float16") if cuda else ("bfloat16", "float32")
    checks.note(
        f"it computed in {' or '.join(types)}",
        policy["compute_dtype"] in types,
        policy["compute_dtype"],
    )
    rows = run.metrics()
    wanted = (
        "reward",
        "group_reward_std",
        "kl",
        "loss",
        "completions/mean_length",
        "time/generate_s",
        "time/train_s",
    )
    missing = [name for name in wanted if any(row.get(name) is None for row in rows)]
    checks.note(
        "every step has the metrics that the panel draws", not missing and bool(rows), missing
    )
    proof = "export/merged_16bit/proof.json"
    checks.note(
        "the export is the policy that was trained",
        (run.path / proof).is_file() and run.read_json(proof)["passed"],
    )
    low = evaluation["gain"]["low"]
    checks.note(
        "the held-out gain's interval lies above 0", low > 0 if gain else None, evaluation["gain"]
    )
    checks.note(
        "the first step's memory was measured",
        "memory" in manifest if cuda else None,
        manifest.get("memory"),
    )
    return checks
