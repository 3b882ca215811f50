"""Dead groups, which teach nothing: left out of the loss's average, drawn less often, or replaced by live ones.

All three stand around the trainer's `_generate_and_score_completions`: it is handed the prompts of a generation batch, and
returns the tensors that the loss is computed from. What is drawn follows from the run's record and from the place in the run,
so a run that goes on draws what it would have drawn.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench import processes
from workbench.data.difficulty import load_profile, row_key
from workbench.errors import RecipeError
from workbench.recipe import Recipe, RescuePart
from workbench.rewards.groups import dead_groups
from workbench.run.batch import ScoredBatch
from workbench.run.directory import RunDirectory
from workbench.run.metrics import LEFT_OUT_S, RESCUE_DEAD, RESCUE_FACTOR, RESCUE_TOKENS
from workbench.run.rollouts import read_batches
from workbench.task import Task
from workbench.training.settings.batches import Batch

if TYPE_CHECKING:
    from workbench.training.plan import Stage

# What TRL's `_compute_loss` divides by: these losses by tokens, the others by completions; dead groups count in both.
BY_TOKENS = ("bnpo", "cispo", "dapo", "vespo")
_UNSLOTHS = "UNSLOTH_GRPO_ZERO_VARIANCE_EXCLUDE"


def notes(recipe: Recipe, settings: dict[str, Any], planned: Batch, rows: Sequence[Any]) -> list[str]:
    """What `rescue` does at this batch, one line a part; RecipeError for what it cannot be combined with."""

    def refused(said: str, rule: str, remedy: str) -> RecipeError:
        return RecipeError(f"rescue.{said}", rule=rule, remedy=remedy)

    part, lines = recipe.rescue, []
    asked = [name for name, value in part if value != getattr(RescuePart(), name)]
    if asked and processes.count() > 1:
        said = f"{asked[0]} with {processes.count()} processes"
        raise refused(said, "prompts and losses are rescued in one process", "leave rescue out, or train on one GPU")
    if part.exclude_zero_variance:
        if os.environ.get(_UNSLOTHS) == "1":
            raise refused(f"exclude_zero_variance with {_UNSLOTHS}=1", "dead groups are left out once", "unset the variable")
        loss = settings.get("loss_type", "dapo")  # TRL's default
        what = "tokens" if loss in BY_TOKENS else "completions"
        line = f"rescue.exclude_zero_variance: loss_type = {loss!r} is averaged over the {what} of live groups, not of all "
        line += f"{planned.prompts}, so a batch with few of them moves the policy as far as a batch full of them"
        passes = settings.get("gradient_accumulation_steps") or 1
        line += f" (over all {passes} passes: bnpo averages each by itself)" * (loss == "bnpo" and passes > 1)
        lines.append(line + "; the KL term stays the mean over all completions" * bool(settings.get("beta")))
    if (part.curriculum or part.oversample > 1) and settings.get("shuffle_dataset") is False:
        raise refused(f"{asked[-1]} with grpo.shuffle_dataset = False", "it draws prompts at random", "leave one of them out")
    if part.curriculum:
        lines.append(
            "rescue.curriculum: prompts are drawn in proportion to p(1 - p) of their pass rates in this run, which begin with "
            "those of notebook 01's difficulty.jsonl where there is one; some come more often, and an epoch is only a length"
        )
    if part.oversample > 1:
        said, drawn = f"oversample = {part.oversample}", part.oversample * planned.prompts
        aggregated = settings.get("multi_objective_aggregation", "sum_then_normalize")
        if settings["scale_rewards"] == "batch" or aggregated == "normalize_then_sum":
            rule = "an advantage is made within its group; here it would depend on completions that are left out"
            raise refused(said, rule, "scale_rewards: group (or none), multi_objective_aggregation: sum_then_normalize")
        if settings.get("use_vllm"):
            raise refused(said, "the workbench's loop or TRL's own path generates", "leave it out, or turn vLLM off")
        if len(rows) and len(rows) < drawn:
            rule = f"a generation batch draws {part.oversample} x {planned.prompts} different prompts; there are {len(rows)}"
            raise refused(said, rule, "lower it, or give more prompts")
        lines.append(
            f"rescue.{said}: {drawn * planned.num_generations} completions of {drawn} prompts, drawn at random, are generated "
            f"and scored for each {planned.completions} that are learnt from, live groups first; the record holds all of them"
        )
    return lines


class Rates:
    """How often each prompt was solved. When one comes again, what was seen of it before counts half: policies move on."""

    def __init__(self) -> None:
        self.counts: dict[str, tuple[float, float]] = {}  # prompt_id -> right, wrong

    def note(self, batch: ScoredBatch) -> None:
        """Take in the groups of a batch, in order."""
        size = batch.num_generations
        for prompt, right in zip(batch.prompt_ids[::size], batch.right.reshape(-1, size).sum(axis=1).tolist(), strict=True):
            before = self.counts.get(prompt, (0.0, 0.0))
            self.counts[prompt] = before[0] / 2 + right, before[1] / 2 + size - right

    def weight(self, prompt: str) -> float:
        """What p(1 - p) is on average, if any pass rate p was as likely at first: 1/6 for a prompt that was never seen."""
        right, wrong = (count + 1 for count in self.counts.get(prompt, (0.0, 0.0)))
        return right * wrong / ((right + wrong) * (right + wrong + 1))


def drawn(weights: np.ndarray, count: int, seed: Sequence[int]) -> np.ndarray:
    """`count` different places [count]: each is drawn in proportion to the weights [N] of those that are left."""
    return np.argsort(np.random.default_rng(seed).standard_exponential(len(weights)) / weights, kind="stable")[:count]


class Rescue:
    """What the recipe's `rescue` does while one stage trains: `around` a trainer, told of each scored batch by `note`.

    Args:
        profile: the run's copy of notebook 01's difficulty.jsonl; it need not be there.
    """

    def __init__(self, stage: Stage, run: RunDirectory, profile: Path) -> None:
        self.stage, self.part, self.rates = stage, stage.recipe.rescue, Rates()
        self.draws = self.part.curriculum or self.part.oversample > 1
        self._batch: ScoredBatch | None = None
        if self.part.curriculum:
            if profile.is_file():
                self.rates.counts = _measured(stage.task, profile)
            # Of a run that goes on, or of the stages before. Read as it was written, so that the numbers are the same.
            for batch in read_batches(run, bare=True) if any(run.rollouts.glob("step-*.parquet")) else ():
                self.rates.note(batch)

    def note(self, batch: ScoredBatch) -> None:
        """A generation batch was scored."""
        self._batch = batch
        if self.part.curriculum:
            self.rates.note(batch)

    def around(self, trainer: Any) -> Callable[[Any], Any]:
        """What goes in the place of the trainer's `_generate_and_score_completions`."""
        generate, rows = trainer._generate_and_score_completions, trainer.train_dataset
        prompts = [row["prompt_id"] for row in self.stage.rows]

        def rescued(inputs: list[dict[str, Any]]) -> dict[str, Any]:
            if not trainer.model.training:
                return generate(inputs)
            if self.draws:
                weights = np.array([self.rates.weight(prompt) for prompt in prompts])
                count = self.stage.planned.prompts * self.part.oversample
                # The trainer counts its passes, also on from a checkpoint: no state of a generator has to be kept.
                places = drawn(weights, count, [self.stage.recipe.seed, self.stage.number, trainer._step])
                inputs = [dict(rows[int(place)]) for place in places for _ in range(self.stage.planned.num_generations)]
            started, noted = time.perf_counter(), trainer._metrics["train"]
            found = generate(inputs)
            dead = dead_groups(self._batch)
            if self.part.oversample > 1:
                found, dead = self._chosen(found, dead, noted, time.perf_counter() - started)
            if self.part.exclude_zero_variance:
                noted[RESCUE_FACTOR].append(self._excluded(found, dead, trainer.loss_type))
            return found

        return rescued

    def _chosen(
        self, found: dict[str, Any], dead: np.ndarray, noted: dict[str, list[float]], seconds: float
    ) -> tuple[dict[str, Any], np.ndarray]:
        # The groups that are learnt from, in the order drawn: live ones first, dead ones where those are too few.
        size, total = self.stage.planned.num_generations, len(found["advantages"])
        kept = np.sort(np.argsort(dead, kind="stable")[: self.stage.planned.prompts])
        places = (kept[:, None] * size + np.arange(size)).ravel().tolist()
        before = _loss_mask(found).sum().item()
        for name, own in found.items():
            if hasattr(own, "shape") and own.ndim and len(own) == total:
                found[name] = own[places]
            elif isinstance(own, list) and len(own) == total:
                found[name] = [own[place] for place in places]
        found["num_items_in_batch"] = _loss_mask(found).sum()
        left_out = before - found["num_items_in_batch"].item()
        noted[RESCUE_DEAD].append(float(dead[kept].mean()))
        noted[RESCUE_TOKENS].append(left_out)
        noted[LEFT_OUT_S].append(seconds * left_out / max(1, before))
        return found, dead[kept]

    @staticmethod
    def _excluded(found: dict[str, Any], dead: np.ndarray, loss_type: str) -> float:
        # A dead group's advantages are 0: it adds nothing to the loss but to what that is divided by. Instead of another
        # divisor, live groups get larger advantages, in which every loss is linear and every clip the same. The KL term and
        # the entropy bonus have no advantage in them and stay what they are, on the tokens of dead groups, too.
        import torch

        if dead.all() or not dead.any():
            return 1.0
        mask = _loss_mask(found)
        learns = torch.as_tensor(np.repeat(~dead, len(mask) // len(dead)), device=mask.device)
        sizes = mask.sum(dim=1) if loss_type in BY_TOKENS else torch.ones_like(mask[:, 0])
        factor = sizes.sum().item() / max(1, (sizes * learns).sum().item())
        found["advantages"] = found["advantages"] * learns * factor
        return factor


def _loss_mask(found: dict[str, Any]) -> Any:
    mask, tools = found["completion_mask"], found.get("tool_mask")
    return mask if tools is None else mask * tools


def _measured(task: Task, profile: Path) -> dict[str, tuple[float, float]]:
    solved = load_profile(profile).solved
    pairs = ((each["prompt_id"], solved.get(row_key(row))) for row, each in zip(task.rows, task.with_ids(task.rows), strict=True))
    return {prompt: (float(own.right), float(own.of - own.right)) for prompt, own in pairs if own is not None}
