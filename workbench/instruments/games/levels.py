"""`difficulty: auto`: the level of a task that the policy solves some of the time, 20 to 80 %, so
that the completions of most groups differ.

One completion each of different training prompts, at most 300 in all, sampled as the run's recipe
says, and kept in the workspace under tasks/levels/, so that the same policy is not measured twice.
"""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.base import processes
from workbench.base.errors import RecipeError, TaskError
from workbench.base.kinds import Fields, Tokenizer
from workbench.base.workspace import append_line, made, read_lines, resolve, shown
from workbench.data.rendering import prompt_lengths_tokens
from workbench.health.trends import Z_95, Interval, percent, share
from workbench.instruments.games import is_of_gym
from workbench.recipe import Recipe
from workbench.rewards.suite import RewardSuite
from workbench.task import Row
from workbench.training.plan import settings as settings_of
from workbench.training.plan.loading import adapter_sum
from workbench.training.plan.settings.device import Machine
from workbench.training.policy import load_policy, trainer_classes
from workbench.training.sampling import scored_groups

if TYPE_CHECKING:
    from workbench.instruments.games.gym import GymName
    from workbench.training.policy import Policy

BAND = (0.2, 0.8)
_MIDDLE = sum(BAND) / 2
MOST = 300  # completions in all
# Completions of a level at first, and more where the first leave open whether it is in the band.
_PROBE, _MORE = 32, 64
_QUESTIONS = 200  # of a level: a fifth of them are held out
_TOGETHER = 32
# Settings of the run that its completions depend on.
_SAMPLING = (
    "max_completion_length", "temperature", "top_p", "top_k", "min_p", "repetition_penalty",
)  # fmt: skip

# (level or None, completions before, completions) -> (right, completions), of fewer where the level
# has no more questions; TaskError: it has none.
Attempt = Callable[[int | None, int, int], tuple[int, int]]


@dataclass
class LevelSearch:
    """What was measured of a task's levels: (right, completions) of each, and which was chosen."""

    levels: Sequence[int | None]
    solved: dict[int | None, tuple[int, int]] = field(default_factory=dict)
    failures: dict[int | None, str] = field(default_factory=dict)
    chosen: int | None = None
    in_band: bool = False

    @property
    def completions(self) -> int:
        """Completions in all."""
        return sum(of for _, of in self.solved.values())

    def rate(self, level: int | None) -> Interval:
        """How often a level was solved, with its 95 % interval."""
        return share(*self.solved[level], Z_95)

    def certain(self, level: int | None) -> bool | None:
        """Whether a level is in the band; None: its interval holds an end of it."""
        rate = self.rate(level)
        if rate.high < BAND[0] or rate.low > BAND[1]:
            return False
        return True if BAND[0] <= rate.low and rate.high <= BAND[1] else None

    def distance(self, level: int | None) -> tuple[float, int]:
        """How far a level lies from the band's middle; of two alike, the one nearer to it in
        difficulty.
        """
        rate, order = self.rate(level).value, _order(level)
        return abs(rate - _MIDDLE), -order if rate > _MIDDLE else order

    def __str__(self) -> str:
        lines = [_line(level, self.rate(level)) for level in sorted(self.solved, key=_order)]
        lines += [f"level {level}: {why}" for level, why in self.failures.items()]
        return "; ".join([*lines, self.verdict])

    @property
    def verdict(self) -> str:
        """Which level is trained on, and why it is not in the band, if it is not."""
        name = _name(self.chosen)
        if self.in_band:
            return f"{name} chosen, after {self.completions} completions"
        if not self.solved:
            return "WARNING: no level could be measured"
        rate, ends = self.rate(self.chosen), f"{percent(BAND[0])} to {percent(BAND[1])}"
        hard = rate.value < BAND[0]
        if len(self.levels) == 1:
            why = "the task has one difficulty"
        elif self.completions >= MOST:
            why = f"{MOST} completions were used"
        elif hard and self.chosen == self.levels[0]:
            why = "it is the easiest"
        elif not hard and self.chosen == self.levels[-1]:
            why = "it is the hardest"
        else:
            step, word = (-1, "easier") if hard else (1, "harder")
            beside = self.levels[self.levels.index(self.chosen) + step]
            lies = "could not be measured" if beside in self.failures else "lies on the other side"
            why = f"the next {word} one {lies}"
        warm = "; `warm_start: 32` finds rare right completions first" if rate.value else ""
        return (
            f"WARNING: no level is solved {ends} of the time; {name} is nearest, solved"
            f" {percent(rate.value)}: {why}{warm if hard else ''}"
        )


def _order(level: int | None) -> int:
    return -1 if level is None else level


def _name(level: int | None) -> str:
    return "its one difficulty" if level is None else f"level {level}"


def _line(level: int | None, rate: Interval) -> str:
    ends = f"{100 * rate.low:.0f} to {100 * rate.high:.0f}"
    return f"{_name(level)} solved {percent(rate.value)} ({ends})"


def search(levels: Sequence[int | None], attempt: Attempt) -> LevelSearch:
    """The level whose solved share lies in the band: the easiest is tried first, then halves of
    what is left, as a harder level is solved less often.

    A level whose first completions leave the band open is measured further before it is judged. The
    search ends at a level whose interval lies in the band. Else the level solved nearest to the
    middle of the band is chosen of those that were measured, if its share is in the band.
    """
    found = LevelSearch(levels)

    def measure(level: int | None, count: int) -> None:
        right, of = found.solved.get(level, (0, 0))
        more, count = attempt(level, of, min(count, MOST - found.completions))
        found.solved[level] = right + more, of + count

    low, high, place = 0, len(levels) - 1, 0
    while low <= high and found.completions < MOST:
        level = levels[place]
        try:
            measure(level, _PROBE)
            if found.certain(level) is None and found.completions < MOST:
                measure(level, _MORE)
        except TaskError as error:
            found.solved.pop(level, None)
            found.failures[level] = error.value
            harder = place == 0  # the easiest may have too few questions
        else:
            if found.certain(level):
                break
            harder = found.rate(level).value > _MIDDLE
        low, high = (place + 1, high) if harder else (low, place - 1)
        place = (low + high) // 2
    if found.solved:
        found.chosen = min(found.solved, key=found.distance)
        found.in_band = BAND[0] <= found.rate(found.chosen).value <= BAND[1]
    return found


def fitting(
    rows: Sequence[Row], tokenizer: Tokenizer, recipe: Recipe, completion: int
) -> list[Row]:
    """The rows whose prompt leaves so many tokens of the context for a completion, and is within
    `max_prompt_length`.
    """
    longest = recipe.policy.max_seq_length - completion
    longest = min(longest, recipe.max_prompt_length or longest)
    lengths = prompt_lengths_tokens(rows, tokenizer)
    return [row for row, length in zip(rows, lengths, strict=True) if length <= longest]


def find_level(recipe: Recipe, policy: Policy | None = None) -> tuple[Recipe, list[str]]:
    """The recipe with the level that `difficulty: auto` finds in its task's name, and lines for the
    plan. The policy is loaded if the file does not hold the result.

    RecipeError: the task has no levels to choose from, or names one; or several processes train.
    """
    from workbench.instruments.games import gym

    if not is_of_gym(recipe.task) or "@" in recipe.task:
        raise RecipeError(
            f"difficulty = 'auto' with task {recipe.task!r}",
            rule="it finds a level of a task `reasoning_gym/NAME`, written without one",
            remedy="leave difficulty out, or name such a task",
        )
    if (count := processes.count()) > 1:
        raise RecipeError(
            f"difficulty = 'auto' in {count} processes",
            rule="a level is found in one process",
            remedy="start one process; or `workbench plan` finds it: name that level in `task`",
        )
    name = gym.parsed(recipe.task).task
    fields = settings_of.field_names(trainer_classes(recipe.policy.backend)[0])
    renamed, _ = settings_of.with_new_names(recipe, fields)
    settings = settings_of.normalised(renamed, fields, Machine.here())[1]
    # TRL lets the latter go first; what neither holds is TRL's default, and `sample`'s
    settings |= settings.get("generation_kwargs") or {}
    how = {key: settings[key] for key in _SAMPLING if key in settings}
    adapter = recipe.policy.adapter
    about = {
        "policy": recipe.policy.model_dump(mode="json"),
        "adapter": adapter and adapter_sum(Path(adapter)),
        "trained_in": policy.trained_in if policy else [],
        "task": name,
        "reasoning_gym": metadata.version("reasoning-gym"),
        **how,
        "max_prompt_length": recipe.max_prompt_length,
        "chat_template_kwargs": recipe.chat_template_kwargs,
        "seed": recipe.seed,
    }
    key = hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()[:8]
    file = resolve(f"tasks/levels/{name}-{key}.jsonl")
    known = [kept for kept in read_lines(file) if "task" in kept]
    if not known:
        loaded = [policy] if policy else []

        def attempt(level: int | None, start: int, count: int) -> tuple[int, int]:
            return _attempted(recipe, gym.GymName(name, level), start, count, loaded, how)

        found = search(gym.levels(name) or (None,), attempt)
        del loaded[:]
        gc.collect()
        line = f"difficulty: auto: {found}; kept in {shown(file)}"
        known.append({"task": str(gym.GymName(name, found.chosen)), "line": line})
        made(file.parent)
        append_line(file, known[-1])
    changes = {"task": known[-1]["task"], "difficulty": None}
    return recipe.model_copy(update=changes), [known[-1]["line"]]


def _attempted(
    recipe: Recipe, named: GymName, start: int, count: int, loaded: list[Policy], how: Fields
) -> tuple[int, int]:
    from workbench.instruments.games import gym

    task = gym.task(str(named), questions=_QUESTIONS)
    if not loaded:
        loaded.append(load_policy(recipe))
    fit = fitting(task.rows, loaded[0].tokenizer, recipe, how["max_completion_length"])
    if not fit:
        raise TaskError(
            f"{named}: no prompt fits into {recipe.policy.max_seq_length} tokens",
            rule="prompt and completion fit into policy.max_seq_length together",
            remedy="raise it, or lower max_completion_length",
        )
    rows = fit[start : start + count]
    if not rows:
        return 0, 0
    suite = RewardSuite(task, 1, recipe.reward_weights, **recipe.rewards.model_dump())
    seed = recipe.seed + start
    groups = scored_groups(loaded[0], task, rows, suite, 1, seed=seed, batch_size=_TOGETHER, **how)
    suite.close()
    right = sum(group[0]["right"] or False for group in groups)
    print(f"difficulty: auto: {named}: {right} of {len(rows)} solved", flush=True)
    return right, len(rows)
