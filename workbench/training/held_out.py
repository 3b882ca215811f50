"""Held-out prompts, measured while a run trains (`eval_every` in the recipe), and the best adapter kept.

The same prompts each time, chosen by the seed from those of the recipe's own task, as `workbench eval` takes them, whatever
task a stage trains on; as step 0 the base, and then the policy after a warm start. One completion each, sampled at the training
temperature with the same random numbers: the likeliest tokens (`eval_temperature: 0`) may all be right before and after, as the
demo's are, and the policy much better. What training computes stays what it is, to the last bit. Completions and scores are
rows in `held_out/step-N.parquet`, apart from those of training.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import shutil
import time
from collections.abc import Callable
from typing import Any

from workbench import processes
from workbench.data.difficulty import row_key
from workbench.errors import RecipeError
from workbench.health.trends import GAINED, Z_95, paired_gain, percent, share
from workbench.recipe import Recipe
from workbench.rewards.suite import RewardSuite
from workbench.run.directory import RunDirectory
from workbench.run.held_out import best_of, completion_rows, flags, held_out, write_completions
from workbench.task import Row, Task
from workbench.training.loading import random_kept
from workbench.training.plan import Plan
from workbench.training.policy import Policy
from workbench.training.resuming import check_finite, save_adapter
from workbench.training.sampling import scored_groups
from workbench.workspace import replace_folder

FOLDER = "held_out"
_LEAST = math.floor(3 / GAINED) + 1  # prompts: P of them leave 3 / P open, however alike they come out


def chosen(recipe: Recipe, task: Task) -> list[Row]:
    """The held-out rows that are measured: at most `eval_prompts`, each once, the same for the same seed."""
    rows = [*{row_key(row): row for row in task.with_ids(task.held_out)}.values()]
    return random.Random(f"held_out:{recipe.seed}").sample(rows, min(len(rows), recipe.eval_prompts))


def in_words(recipe: Recipe, task: Task | None, completions: int, steps: int) -> list[str]:
    """A line on what `eval_every` will measure, and at what price; RecipeError if it cannot.

    Args:
        completions: of a step.
        steps: of the run; below 1 where epochs decide.
    """
    every = recipe.eval_every
    if every is None and {"eval_prompts", "eval_temperature"} & {name for name, own in recipe if own != getattr(Recipe(), name)}:
        return ["eval_prompts and eval_temperature do nothing here: nothing is measured without eval_every"]
    if every is None or task is None:
        return []
    said, count = f"eval_every = {every}", len(chosen(recipe, task))
    if processes.count() > 1:
        rule, remedy = "one process measures while it trains", "leave it out; `workbench eval` measures when the run has ended"
        raise RecipeError(f"{said} in {processes.count()} processes", rule=rule, remedy=remedy)
    if count < 2:
        rule, remedy = "it measures held-out prompts, at least 2", "give the task held_out rows (notebook 01), or leave it out"
        raise RecipeError(f"{said}: task {task.name!r} has {count} held-out prompts", rule=rule, remedy=remedy)
    times = 1 + math.ceil(steps / every)  # base, and the end
    price = times * count / (steps * completions) if steps > 0 else count / (every * completions)
    fewer = f", of {recipe.eval_prompts} asked for" * (count < recipe.eval_prompts)
    how = ", the likeliest token each time" * (recipe.eval_temperature == 0)
    line = f"{said}: {count} held-out prompts of {task.name}{fewer}, one completion each{how}, and base before the first step: "
    line += f"{percent(price)} as many completions as training samples"
    return [line + f"; too few to tell that a run is learnt out, which takes {_LEAST}" * (count < _LEAST)]


class HeldOut:
    """Measures a run's held-out prompts and keeps the best adapter.

    Args:
        record: writes an event: (kind, step, its details).
        begun_at: the step of the checkpoint that the run goes on from.
    """

    def __init__(self, run: RunDirectory, plan: Plan, policy: Policy, record: Callable[..., None], begun_at: int) -> None:
        recipe, task = plan.recipe, plan.task
        self.run, self.policy, self.task, self.record = run, policy, task, record
        self.every, self.rows, self.template = recipe.eval_every, chosen(recipe, task), recipe.chat_template_kwargs
        weights = {name: value for name, value in recipe.reward_weights.items() if name in task.function_names}
        # Separate functions: those used in training may keep state, and may be edited while the run trains.
        self.suite = RewardSuite(task, 1, weights, **recipe.rewards.model_dump(), keep_state=False)
        self.how = {name: plan.settings[name] for name in ("max_completion_length", "temperature")}
        if recipe.eval_temperature is not None:
            self.how["temperature"] = recipe.eval_temperature
        told = [*map(row_key, self.rows), self.suite.hash, self.template, *self.how.values()]
        self.how |= {"samples": 1, "seed": recipe.seed, "batch_size": plan.batch.completions}  # as training generates at a time
        self.key = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]
        self._before = [event for event in run.events() if event.get("event") == "held_out" and event["key"] == self.key]
        counted = held_out([*run.events(), {"event": "continued", "step": begun_at}])
        self.found = counted if counted and counted[-1]["key"] == self.key else []
        self.seconds = ((run.manifest().get("before") or {}).get("held_out") or {}).get("seconds", 0.0)  # with its minutes
        self.failed = False

    def begin(self, warmed: bool) -> None:
        """Measure the base, and the policy if it was `warmed`, as far as that was not done before the run was stopped."""
        if not self.found:
            self._measure(0, base=True)
        if warmed and len(self.found) == 1 and not self.failed:
            self._measure(0)

    def after(self, step: int, ends: bool) -> None:
        """Measure the adapter as it is after this step, if it is time to, or the run `ends` with it."""
        due = (step % self.every == 0 or ends) and not any(own["step"] == step for own in self.found)
        if due and self.found and not self.failed:
            self._measure(step)

    def _measure(self, step: int, base: bool = False) -> None:
        started = time.perf_counter()
        try:
            with random_kept():
                adapter = "base" if base else _sum(self.policy.model)
                # What a kill lost of the run may be trained again to the same weights, which need not be measured again.
                same = [own for own in self._before if (own["step"], own["adapter"]) == (step, adapter)]
                numbers = {**same[-1], "seconds": 0.0} if same else self._numbers(step, base)
                event = {**numbers, "event": "held_out", "step": step, "key": self.key, "adapter": adapter}
                found = [*self.found, event]
                if best_of(found) is event:
                    self._keep(step)
        except Exception as error:  # measuring is no reason to lose a run
            self.failed = True
            said = f"{type(error).__name__}: {error}"
            self.record("held_out_failed", step, error=said)
            print(f"step {step}: held-out prompts are measured no more, training goes on: {said}", flush=True)
            return
        if not same:
            event["seconds"] = time.perf_counter() - started
        self.seconds += event["seconds"]
        self.found[:] = found  # in place: the verdicts on the run's health look at it
        self.record("held_out", step, **{name: event[name] for name in event if name not in ("event", "step", "time")})
        self._forget()

    def _numbers(self, step: int, base: bool) -> dict[str, Any]:
        tokenizer = self.policy.tokenizer
        rendered, tokenizer.chat_template_kwargs = self.policy.chat_template_kwargs, self.template
        try:
            groups = scored_groups(self.policy, self.task, self.rows, self.suite, base=base, **self.how)
        finally:
            tokenizer.chat_template_kwargs = rendered
        own = [group[0] for group in groups]
        kept: list[dict[str, Any]] = []
        for place, (row, group) in enumerate(zip(self.rows, groups, strict=True)):
            kept += completion_rows(row, group, step=step, group=place)
        write_completions(self.run.path / FOLDER / f"step-{step:07d}-{not (step or base):02d}.parquet", kept)
        correct = [each["right"] and each["format"] is not False for each in own]
        count, of = sum(correct), len(correct)
        reward = sum(each["total"] for each in own) / of
        numbers = {"prompts": of, "right": "".join("01"[each] for each in correct), "reward": reward}
        numbers |= dict(zip(("correct", "low", "high"), share(count, of, Z_95), strict=True))
        if self.found:
            gain = paired_gain(flags(self.found[0]), flags(numbers))
            numbers |= {"base": self.found[0]["correct"]} | dict(zip(("gain", "gain_low", "gain_high"), gain, strict=True))
        return numbers

    def _keep(self, step: int) -> None:
        check_finite(self.policy.model, self.run, step)
        with replace_folder(self.run.checkpoints / f"best-{step}") as folder:
            save_adapter(self.policy.model, self.policy.tokenizer, folder)

    def _forget(self) -> None:
        # The best one, and those that were the best at the checkpoints that a run can go on from.
        ends = [float("inf"), *(int(folder.name[11:]) for folder in self.run.saved())]
        bests = [best_of([own for own in self.found if own["step"] <= end]) for end in ends]
        kept = {f"best-{own['step']}" for own in bests if own}
        for folder in self.run.checkpoints.glob("best-*"):
            if folder.name not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def result(self, seconds: float) -> dict[str, Any]:
        """For the manifest; `seconds`: of the whole run."""
        if not (best := best_of(self.found)):
            return {}
        names, last = ("step", "correct", "low", "high", "gain", "gain_low", "gain_high"), self.found[-1]
        found = {"prompts": last["prompts"], "base": self.found[0]["correct"], "last": {name: last[name] for name in names}}
        found |= {"best": {name: best[name] for name in names} | {"adapter": f"checkpoints/best-{best['step']}"}}
        return found | {"measurements": len(self.found), "seconds": self.seconds, "share": self.seconds / max(1e-9, seconds)}


def _sum(model: Any) -> str:
    import torch

    digest = hashlib.sha256()
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            digest.update(name.encode())
            digest.update(weight.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
