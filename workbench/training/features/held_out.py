"""Held-out prompts, measured while a run trains (`eval_every` in the recipe), and the best adapter
kept.

The same prompts each time, chosen by the seed from the recipe's own task as `workbench eval` does,
on any task that a stage trains on; step 0 is the base, followed by the policy after a warm start.
One completion each, sampled at the training temperature with the same random numbers: the likeliest
tokens (`eval_temperature: 0`) may all be right before and after, as the demo's are, although the
policy is much better. What training computes does not change by a bit. Completions and scores are
rows in `held_out/step-N.parquet`, apart from those of training.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import shutil
import time

from workbench.base import processes
from workbench.base.errors import RecipeError
from workbench.base.kinds import Fields, Model, TrainerState
from workbench.base.workspace import replace_folder
from workbench.data.difficulty import row_key
from workbench.health.trends import GAINED, Z_95, paired_gain, percent, share
from workbench.recipe import Recipe
from workbench.rewards.suite import RewardSuite
from workbench.run.held_out import (
    best_of,
    completion_rows,
    flags,
    held_out,
    told,
    write_completions,
)
from workbench.run.metrics import HELD_OUT
from workbench.run.sealed import saved_with
from workbench.task import Row, Task
from workbench.training.feature import Asked, Feature, Planned, Watched
from workbench.training.randomness import random_kept
from workbench.training.resuming import check_finite, save_adapter
from workbench.training.sampling import as_trained, scored_groups

FOLDER = "held_out"
# prompts: P of them leave 3 / P open, however alike they come out
_LEAST = math.floor(3 / GAINED) + 1


def chosen(recipe: Recipe, task: Task) -> list[Row]:
    """The held-out rows that are measured: at most `eval_prompts`, each once, the same for the same
    seed.
    """
    rows = [*{row_key(row): row for row in task.with_ids(task.held_out)}.values()]
    return random.Random(f"held_out:{recipe.seed}").sample(
        rows, min(len(rows), recipe.eval_prompts)
    )


def held_out_lines(recipe: Recipe, task: Task | None, completions: int, steps: int) -> list[str]:
    """A line on what `eval_every` will measure, and its cost; RecipeError if it cannot.

    Args:
        completions: per step.
        steps: of the run; below 1 where epochs decide.
    """
    every, default = recipe.eval_every, Recipe()
    how = recipe.eval_prompts, recipe.eval_temperature
    if every is None and how != (default.eval_prompts, default.eval_temperature):
        return [
            "eval_prompts and eval_temperature do nothing here: nothing is measured without"
            " eval_every"
        ]
    if every is None or task is None:
        return []
    value, count = f"eval_every = {every}", len(chosen(recipe, task))
    if processes.count() > 1:
        raise RecipeError(
            f"{value} in {processes.count()} processes",
            rule="one process measures while it trains",
            remedy="leave it out; `workbench eval` measures when the run has ended",
        )
    if count < 2:
        raise RecipeError(
            f"{value}: task {task.name!r} has {count} held-out prompts",
            rule="it measures held-out prompts, at least 2",
            remedy="give the task held_out rows (notebook 01), or leave it out",
        )
    times = 1 + math.ceil(steps / every)  # base, and the end
    price = times * count / (steps * completions) if steps > 0 else count / (every * completions)
    line = f"{value}: {count} held-out prompts of {task.name}"
    if count < recipe.eval_prompts:
        line += f", of {recipe.eval_prompts} asked for"
    line += ", one completion each"
    if recipe.eval_temperature == 0:
        line += ", the likeliest token each time"
    line += f", and base before the first step: {percent(price)} as many completions as training"
    line += " samples"
    if count < _LEAST:
        line += f"; too few to tell that a run is learnt out, which takes {_LEAST} prompts"
    return [line]


class HeldOut(Feature):
    """Measures a run's held-out prompts and keeps the best adapter."""

    key = "held_out"

    def __init__(self, session: Watched) -> None:
        super().__init__(session)
        run, plan, begun_at = session.run, session.plan, session.begun_at
        recipe, task = plan.recipe, plan.task
        self.run, self.policy, self.task = run, session.policy, task
        self._correct: dict[str, float] = {}  # measured since the latest row of metrics
        self.every, self.template = recipe.eval_every, recipe.chat_template_kwargs
        self.rows = chosen(recipe, task)
        weights = recipe.reward_weights
        weights = {name: weights[name] for name in weights if name in task.function_names}
        # Separate functions: those used in training may keep state, and may be edited while the run
        # trains.
        self.suite = RewardSuite(task, 1, weights, **recipe.rewards.model_dump(), keep_state=False)
        self.how = as_trained(plan.settings, task)
        if recipe.eval_temperature is not None:
            self.how["temperature"] = recipe.eval_temperature
        asked_for = [*map(row_key, self.rows), self.suite.hash, self.template, *self.how.values()]
        # as training generates at a time
        self.how |= {"samples": 1, "seed": recipe.seed, "batch_size": plan.batch.completions}
        self.key = hashlib.sha256(json.dumps(asked_for, sort_keys=True).encode()).hexdigest()[:16]
        events = run.events()
        before = [each for each in events if each.get("event") == "held_out"]
        self._before = [each for each in before if each["key"] == self.key]
        counted = held_out([*events, {"event": "continued", "step": begun_at}])
        self.measurements = counted if counted and counted[-1]["key"] == self.key else []
        measured = (run.manifest().get("before") or {}).get("held_out") or {}
        self.seconds = measured.get("seconds", 0.0)  # before it was resumed
        self.failed = False
        session.measured = self.measurements  # the verdicts on the run's health look at it

    @classmethod
    def of(cls, session: Watched) -> HeldOut | None:
        return cls(session) if session.policy and session.plan.recipe.eval_every else None

    @classmethod
    def plan(cls, asked: Asked) -> Planned:
        if not asked.stages:
            return Planned()
        completions = asked.stages[0].planned.completions
        return Planned(held_out_lines(asked.recipe, asked.task, completions, asked.steps))

    def on_train_begin(self, *_: object, **__: object) -> None:
        """Measure the base, and the policy if it differs, unless that was done before the run was
        stopped.
        """
        session = self.session
        if session.stage is not session.stages[0]:
            return
        if not self.measurements:
            self._measure(0, base=True)
        trained = session.trained_before or session.plan.recipe.policy.adapter is not None
        if trained and len(self.measurements) == 1 and not self.failed:
            self._measure(0)

    def on_step_end(self, args: object, state: TrainerState, *_: object, **__: object) -> None:
        """Measure the adapter after this step, if it is due or the run ends here."""
        step = state.global_step
        ends = step >= state.max_steps and self.session.stage is self.session.stages[-1]
        due = step % self.every == 0 or ends
        done = self.failed or any(own["step"] == step for own in self.measurements)
        if due and self.measurements and not done:
            self._measure(step)

    def row(self) -> dict[str, float]:
        """What was measured since the latest row; trackers read it there also."""
        values, self._correct = self._correct, {}
        return values

    def close(self) -> None:
        self.suite.close()

    def _measure(self, step: int, base: bool = False) -> None:
        started = time.perf_counter()
        try:
            with random_kept():
                adapter = "base" if base else _sum(self.policy.model)
                # What a kill lost of the run may be trained again to the same weights, which need
                # not be measured again.
                key = step, adapter
                same = [own for own in self._before if (own["step"], own["adapter"]) == key]
                numbers = {**same[-1], "seconds": 0.0} if same else self._numbers(step, base)
                event: Fields = {
                    **numbers,
                    "event": "held_out",
                    "step": step,
                    "key": self.key,
                    "adapter": adapter,
                }
                measurements = [*self.measurements, event]
                if best_of(measurements) is event:
                    self._keep(step)
        except Exception as error:  # measuring is no reason to lose a run
            self.failed = True
            why = f"{type(error).__name__}: {error}"
            self.session.recorder.event("held_out_failed", step, error=why)
            words = "held-out prompts are no longer measured, training continues"
            print(f"step {step}: {words}: {why}", flush=True)
            return
        if not same:
            event["seconds"] = time.perf_counter() - started
        self.seconds += event["seconds"]
        self.measurements[:] = measurements  # in place: the verdicts on the run's health look at it
        if step:
            self._correct = {HELD_OUT: event["correct"]}
        details = {name: event[name] for name in event if name not in ("event", "step", "time")}
        self.session.recorder.event("held_out", step, **details)
        self._forget()

    def _numbers(self, step: int, base: bool) -> Fields:
        tokenizer = self.policy.tokenizer
        rendered, tokenizer.chat_template_kwargs = self.policy.chat_template_kwargs, self.template
        try:
            groups = scored_groups(
                self.policy, self.task, self.rows, self.suite, base=base, **self.how
            )
        finally:
            tokenizer.chat_template_kwargs = rendered
        records: list[Fields] = []
        for place, (row, group) in enumerate(zip(self.rows, groups, strict=True)):
            records += completion_rows(row, group, step=step, group=place)
        file = f"step-{step:07d}-{not (step or base):02d}.parquet"
        write_completions(self.run.path / FOLDER / file, records)
        own = [group[0] for group in groups]
        flag = {None: "-", False: "0", True: "1"}
        right = [flag[each["right"] and each["format"] is not False] for each in own]
        rate, low, high = share(right.count("1"), len(right) - right.count("-"), Z_95)
        numbers: Fields = {
            "prompts": len(own),
            "right": "".join(right),
            "reward": sum(each["total"] for each in own) / len(own),
            "correct": rate,
            "low": low,
            "high": high,
        }
        if self.measurements:
            first = self.measurements[0]
            told = [own != ("-", "-") for own in zip(first["right"], right)]
            gain, low, high = paired_gain(flags(first)[told], flags(numbers)[told])
            numbers |= {"base": first["correct"], "gain": gain, "gain_low": low, "gain_high": high}
        return numbers

    def _keep(self, step: int) -> None:
        check_finite(self.policy.model, self.run, step)
        with replace_folder(best := self.run.checkpoints / f"best-{step}") as folder:
            save_adapter(self.policy.model, self.policy.tokenizer, folder)
        self.run.update_manifest(saved=saved_with(self.run, best))

    def _forget(self) -> None:
        # The best one, and those that were the best at the checkpoints that a run can resume from.
        ends = [float("inf"), *(int(folder.name[11:]) for folder in self.run.saved())]
        bests = [best_of([own for own in self.measurements if own["step"] <= end]) for end in ends]
        kept = {f"best-{own['step']}" for own in bests if own}
        for folder in self.run.checkpoints.glob("best-*"):
            if folder.name not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def words(self, seconds: float) -> str:
        """The best adapter, and what was measured last."""
        report = self.result(seconds)
        return f"; {told(report['held_out'])}" if report else ""

    def result(self, seconds: float) -> Fields:
        if not (best := best_of(self.measurements)):
            return {}
        names = ("step", "correct", "low", "high", "gain", "gain_low", "gain_high")
        last = self.measurements[-1]
        adapter = {"adapter": f"checkpoints/best-{best['step']}"}
        report = {
            "prompts": last["prompts"],
            "base": self.measurements[0]["correct"],
            "last": {name: last[name] for name in names},
            "best": {name: best[name] for name in names} | adapter,
            "measurements": len(self.measurements),
            "seconds": self.seconds,
            "share": self.seconds / max(1e-9, seconds),
        }
        return {"held_out": report}


def _sum(model: Model) -> str:
    import torch

    digest = hashlib.sha256()
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            digest.update(name.encode())
            raw = weight.detach().cpu().contiguous().view(-1).view(torch.uint8)
            digest.update(raw.numpy().tobytes())
    return digest.hexdigest()[:16]
