"""(d) Steering a run, stopping it and going on, and exporting what it trained, with the embedded
policy on the device.
"""

from __future__ import annotations

import json
import math
import shutil
import threading
from dataclasses import replace
from typing import Any

from measuring import say

from gpu.setting import Checks, Setting

FILE = "controls.json"
WEIGHT, BETA, LEARNING_RATE, PAUSE_S = 2.5, 0.05, 2e-3, 1.0
FUNCTION = "strict_format_reward"


def run(setting: Setting) -> dict[str, Any]:
    """Each of the three once; what is done already is not repeated. Leaves `controls.json`."""
    found = setting.read(FILE) or {"part": "controls", "done": False}
    for name, job in (
        ("steering", _steering),
        ("continuing", _continuing),
        ("exporting", _exporting),
    ):
        if name in found:
            say(f"{name}: done before")
            continue
        say(f"{name} ...")
        checks = Checks()
        try:
            found[name] = {**job(setting, checks), "checks": checks.found}
        except Exception as error:  # the others are still to be looked at
            checks.note(f"{name} ran to its end", False, f"{type(error).__name__}: {error}"[:2000])
            found[name] = {"checks": checks.found}
        setting.write(FILE, found)
    found |= {
        "done": True,
        "checks": [c for n in ("steering", "continuing", "exporting") for c in found[n]["checks"]],
    }
    setting.write(FILE, found)
    return found


def _recipe(setting: Setting, name: str, **grpo: Any) -> Any:
    from workbench.recipe import Recipe

    return Recipe.of(
        {
            "run_name": f"{name}-{setting.device}",
            # on a CPU Unsloth merges no 4-bit model
            "policy": {"name": "tiny", "load_in_4bit": setting.cuda},
            "grpo": {
                "max_steps": setting.sizes.steps,
                "num_generations": 8,
                "per_device_train_batch_size": setting.sizes.control_batch,
                "max_completion_length": setting.sizes.control_tokens,
                # so large that a few steps have an effect that a proof can see
                "learning_rate": 5e-3,
                "lr_scheduler_type": "constant",
                "beta": 0.01,
                "temperature": 1.0,
                "logging_steps": 1,
                **grpo,
            },
            "seed": 0,
        }
    )


def _policy(recipe: Any) -> Any:
    from workbench.training.policy import load_policy

    return load_policy(
        recipe.policy.name, load_in_4bit=recipe.policy.load_in_4bit, seed=recipe.seed
    )


def _train(setting: Setting, recipe: Any, policy: Any, watchers: list[Any]) -> Any:
    from workbench.tiny.task import task
    from workbench.training.trainer import train

    # of a call that was killed
    shutil.rmtree(setting.work / "runs" / recipe.run_name, ignore_errors=True)
    return train(recipe, policy=policy, task=task(), watchers=watchers, runs=setting.work / "runs")


class Asks:
    """A watcher that asks the run for something after given steps; what is asked after step N is
    answered after N + 1.
    """

    def __init__(self, asked: dict[int, tuple[str, dict[str, Any]]]) -> None:
        self.asked = asked
        self.ids: dict[str, str] = {}  # action -> id of its request

    def begin(self, run: Any, total_steps: int, settings: dict[str, Any]) -> None:
        self.run = run

    def update(self, step: int, values: dict[str, Any]) -> None:
        if step in self.asked:
            action, details = self.asked[step]
            self.send(action, **details)

    def event(self, event: dict[str, Any]) -> None:
        if event.get("action") == "pause" and event.get("applied"):
            threading.Timer(PAUSE_S, self.send, ["resume"]).start()

    def send(self, action: str, **details: Any) -> None:
        from workbench.run.control_file import send

        self.ids[action] = send(self.run, action, by="the suite", **details)

    def end(self, message: str) -> None:
        pass


def _steering(setting: Setting, checks: Checks) -> dict[str, Any]:
    """Weight, beta and learning rate changed, a pause, a stop: each answered, and seen in the steps
    that follow.
    """
    from workbench.run.control_file import answer_to
    from workbench.run.metrics import weight_of

    asked = [
        ("weight", {"function": FUNCTION, "value": WEIGHT}),
        ("beta", {"value": BETA}),
        ("learning_rate", {"value": LEARNING_RATE}),
        ("pause", {}),
        ("stop", {}),
    ]
    asks = Asks(dict(enumerate(asked, start=1)))
    recipe = _recipe(setting, "steered")
    run = _train(setting, recipe, _policy(recipe), [asks])
    rows = {row["step"]: row for row in run.metrics()}
    found: dict[str, Any] = {"answers": {}, "result": run.result()}
    for action, identity in asks.ids.items():
        event = answer_to(run, identity) or {}
        found["answers"][action] = {
            key: event.get(key)
            for key in ("applied", "step", "from_step", "before", "after", "why")
        }
        checks.note(f"{action}: asked for and done", event.get("applied") is True, event.get("why"))

    def first_row(action: str) -> dict[str, Any]:
        return rows.get((found["answers"].get(action) or {}).get("from_step"), {})

    weight, rate = (
        first_row("weight").get(weight_of(FUNCTION)),
        first_row("learning_rate").get("learning_rate"),
    )
    checks.note("the weight is that of the first step under it", weight == WEIGHT, weight)
    near = rate is not None and math.isclose(rate, LEARNING_RATE, rel_tol=1e-3)
    checks.note("the learning rate is that of the first step under it", near, rate)
    checks.note(
        "KL is measured under the new beta",
        first_row("beta").get("kl") is not None,
        first_row("beta").get("kl"),
    )
    checks.note(
        f"it waited for {PAUSE_S:g} s",
        run.result()["paused_s"] >= 0.9 * PAUSE_S,
        run.result()["paused_s"],
    )
    got = (run.result()["status"], run.result()["steps"])
    checks.note("it stopped after the step in flight", got == ("stopped", len(asked) + 1), got)
    return found


def _continuing(setting: Setting, checks: Checks) -> dict[str, Any]:
    """A run that was stopped half way and goes on with a fresh policy, against one that never
    stopped.
    """
    from workbench.run.rollouts import query
    from workbench.tiny.task import task
    from workbench.training.trainer import continue_run

    steps = setting.sizes.continued_steps
    half = steps // 2
    recipe = _recipe(setting, "whole", max_steps=steps)
    whole = _train(setting, recipe, _policy(recipe), [])
    recipe = _recipe(setting, "part", max_steps=steps)
    part = _train(setting, recipe, _policy(recipe), [Asks({half - 1: ("stop", {})})])
    checks.note(
        "it stopped half way",
        (part.result()["status"], part.result()["steps"]) == ("stopped", half),
    )
    policy = _policy(recipe)
    continue_run(part, policy=policy, task=task())
    checks.note(
        "it went on to its end",
        (part.result()["status"], part.result()["steps"]) == ("finished", steps),
    )
    differences = largest_differences(whole.metrics(), part.metrics(), after=half)
    text = (
        f'select step, "group", generation, completion from rollouts where step >= {half} order'
        " by all"
    )
    mine, theirs = (query(run.rollouts, text)["completion"] for run in (part, whole))
    same = float((mine.to_numpy() == theirs.to_numpy()).mean()) if len(mine) == len(theirs) else 0.0
    largest = max(differences.values(), default=math.nan)
    # On a CPU to the last bit; a GPU's kernels may add in another order, so there it is a number
    # and no verdict.
    checks.note(
        "its numbers are those of the run that never stopped",
        largest == 0 if not setting.cuda else None,
        largest,
    )
    inexact = [event.get("inexact") for event in part.events() if event["event"] == "continued"]
    return {
        "largest_differences": differences,
        "same_completions": same,
        "inexact": inexact,
        "steps_after": half,
    }


def largest_differences(
    whole: list[dict[str, Any]], part: list[dict[str, Any]], after: int
) -> dict[str, float]:
    """By metric, the largest absolute difference between two runs' rows of the steps after one;
    times are left out.

    A row or a value that only one of them has counts as infinite.
    """
    first, second = (
        {row["step"]: row for row in rows if row["step"] > after} for rows in (whole, part)
    )
    found: dict[str, float] = {}
    for step in first.keys() | second.keys():
        one, other = first.get(step, {}), second.get(step, {})
        for name in one.keys() | other.keys():
            if name == "step_time" or name.startswith("time/"):
                continue
            a, b = one.get(name), other.get(name)
            if isinstance(a, (int, float)) and isinstance(b, (int, float)):
                difference = abs(a - b)
            else:
                difference = 0.0 if a == b else math.inf
            found[name] = max(found.get(name, 0.0), difference)
    return found


def _exporting(setting: Setting, checks: Checks) -> dict[str, Any]:
    """The adapter merged to 16 bits by the workbench and by Unsloth; each proven against the live
    policy.
    """
    from workbench.exporting import passport
    from workbench.exporting.making import export
    from workbench.exporting.proving import prove
    from workbench.run.directory import open_run
    from workbench.training.resuming import load_adapter

    run = open_run(setting.work / "runs" / f"part-{setting.device}")
    policy = _policy(_recipe(setting, "part"))
    load_adapter(policy.model, run.final)
    own = export(run, ["merged_16bit"], into="base", overwrite=True)["merged_16bit"]
    found: dict[str, Any] = {}

    def by_unsloth() -> Any:
        out = setting.work / "export" / f"unsloth-{setting.device}"
        shutil.rmtree(out, ignore_errors=True)
        policy.model.save_pretrained_merged(str(out), policy.tokenizer, save_method="merged_16bit")
        passport.stamp(out, made := replace(own, path=out))
        return made

    for who, merge in (("unsloth", by_unsloth), ("workbench", lambda: own)):
        try:
            made = merge()
            proof = prove(made, prompts=2 if setting.toy else 16).for_scripts()
            # The type of what was written, before it is loaded in 32 bits to be compared.
            proof["dtype"] = json.loads(
                (made.path / "config.json").read_text(encoding="utf-8")
            ).get("dtype")
            checks.note(f"merged by {who}: is the policy that was trained", proof["passed"], proof)
            found[who] = proof
        except Exception as error:
            found[who] = {"error": f"{type(error).__name__}: {error}"[:2000]}
            checks.note(
                f"merged by {who}: is the policy that was trained", False, found[who]["error"]
            )
    found["load_in_4bit"] = setting.cuda
    return found
