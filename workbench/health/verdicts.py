"""What is said about a run's health, and what has to be known to say it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from workbench.health.summary import FunctionSummary, StepSummary
from workbench.health.trends import Interval, slope
from workbench.rewards.groups import ALL_RIGHT, DEAD_KINDS, IDENTICAL
from workbench.run.metrics import KL

ALARM, WARNING, NOTE, OK, SKIPPED = STATES = ("alarm", "warning", "note", "ok", "skipped")

WINDOW = 20  # batches that say what a run is like now
LONG_WINDOW = 100  # batches over which a trend is looked for
MOST_PROMPTS = 8  # ids that a verdict names

# The illnesses, in words that go both before what is wrong and after "no sign of". The keys are for scripts.
NAMES = {
    "non_finite": "NaN or infinite values",
    "zero_gradient": "vanishing gradients",
    "reward_cannot_pay": "rewards that never fire",
    "one_function": "one reward dominating",
    "dead_groups": "dead groups",
    "collapse": "identical completions",
    "wasted": "wasted compute",
    "slow_learning": "slow learning",
    "truncation": "clipped completions",
    "length_drift": "length drift",
    "format_without_right": "format without correctness",
    "kl_runaway": "runaway KL",
    "kl_not_measured": "unmeasured KL",
}


@dataclass(frozen=True)
class Verdict:
    """One thing that can go wrong, and whether it has.

    Args:
        name: the illness, a word for scripts.
        state: "alarm" (stop and look), "warning", "note" (worth knowing), "ok", or "skipped": it cannot be said, and
            `evidence` has the key that is `missing`, or what it `needs` and `has`.
        line: one sentence with its numbers.
        evidence: those numbers, by name.
        first_step, last_step: the steps that they are of.
        prompts: ids of prompts that show it, at most `MOST_PROMPTS`.
        function: the reward function; empty: none in particular.
        cause: what makes a run ill in this way.
        remedy: what to do.
    """

    name: str
    state: str
    line: str
    evidence: dict[str, Any] = field(default_factory=dict)
    first_step: int | None = None
    last_step: int | None = None
    prompts: tuple[str, ...] = ()
    function: str = ""
    cause: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.state}: {self.title}: {self.line}" + (f"\n  -> {self.remedy}" if self.remedy else "")

    @property
    def title(self) -> str:
        """The illness in words."""
        return NAMES.get(self.name, self.name)

    @property
    def key(self) -> tuple[str, str]:
        """What makes it the same verdict from one step to the next."""
        return self.name, self.function


@dataclass(frozen=True)
class Facts:
    """What a run was asked to do, as far as verdicts need it. None: not known."""

    weights: dict[str, float] = field(default_factory=dict)  # by reward function
    best: dict[str, float | None] = field(default_factory=dict)  # by reward function: the most that it says it pays
    num_generations: int | None = None
    max_completion_length: int | None = None  # tokens
    beta: float | None = None
    learning_rate: float | None = None
    temperature: float | None = None
    scale_rewards: str | bool | None = None
    aggregation: str | None = None
    right_by: str | None = None
    format_by: str | None = None
    total_steps: int | None = None
    fp16: bool = False


class Case:
    """One run as it is examined: the batches of its latest stage, the metrics of the same steps, and the facts.

    A new stage has other prompts, rewards or settings, so nothing is compared across its beginning.
    """

    def __init__(self, summaries: Sequence[StepSummary], rows: Sequence[dict[str, Any]], facts: Facts) -> None:
        self.everything, self.all_rows, self.facts = list(summaries), list(rows), facts
        begin = len(self.everything)
        while begin and self.everything[begin - 1].stage == self.everything[-1].stage:
            begin -= 1
        self.batches = self.everything[begin:]
        self.recent = self.batches[-WINDOW:]
        # Rows before the stage's first batch belong to another stage; without any batch there is one stage only.
        first = self.batches[0].step if begin else -math.inf
        self.rows = [row for row in self.all_rows if (row.get("step") or 0) >= first]

    def numbers(self, key: str) -> list[tuple[int, float]]:
        """(step, value) of a metric, where it is a finite number."""
        found = [(row.get("step") or 0, row.get(key)) for row in self.rows]
        return [(step, float(value)) for step, value in found if is_number(value)]

    @cached_property
    def kl(self) -> list[tuple[int, float]]:
        """(step, KL) where it was measured: with beta = 0 a trainer may log a 0.0 that nobody measured."""
        found = self.numbers(KL)
        return found if self.facts.beta != 0 or any(value for _, value in found) else []

    @cached_property
    def functions(self) -> list[FunctionSummary]:
        """Of the latest batch, those that have a weight."""
        return [function for function in self.batches[-1].functions if function.weight]

    @cached_property
    def by_function(self) -> dict[str, list[tuple[StepSummary, FunctionSummary]]]:
        """Each of `functions` in every batch that it scored."""
        names = {function.name for function in self.functions}
        found: dict[str, list[tuple[StepSummary, FunctionSummary]]] = {name: [] for name in names}
        for batch in self.batches:
            for function in batch.functions:
                if function.name in names:
                    found[function.name].append((batch, function))
        return found

    @cached_property
    def rewards(self) -> list[float]:
        """Mean reward of each batch under the latest weights, so that a change of weights is not taken for a trend."""
        weights = {function.name: function.weight for function in self.functions}
        return [
            sum(weights[own.name] * own.mean for own in batch.functions if own.name in weights and own.mean is not None)
            for batch in self.batches[-LONG_WINDOW:]
        ]

    @cached_property
    def reward_slope(self) -> Interval:
        """Change of `rewards` a batch."""
        return slope(self.rewards)

    @property
    def rises(self) -> bool:
        """Whether the reward rises, beyond doubt."""
        return self.reward_slope.low > 0

    def too_few(self, name: str, batches: int = 3, groups: int = 16, completions: int = 0) -> Verdict | None:
        """A skipped verdict where the window holds less than is needed; None where it holds enough."""
        if not self.batches:
            return missing(name, "rollouts", "no batch was recorded")
        needs = {"batches": batches, "groups": groups, "completions": completions}
        has = {
            "batches": len(self.batches),
            "groups": sum(batch.group_count for batch in self.recent),
            "completions": sum(batch.completions for batch in self.recent),
        }
        short = [word for word, count in needs.items() if has[word] < count]
        if not short:
            return None
        word = short[0]
        return Verdict(
            name,
            SKIPPED,
            f"too early to say: {has[word]} of {needs[word]} {word}",
            {"needs": needs[word], "has": has[word], "of": word},
        )

    def ends(self) -> tuple[list[StepSummary], list[StepSummary]]:
        """The first and the last batches of the stage, a quarter each, at least 3 and at most 10."""
        count = min(10, max(3, len(self.batches) // 4))
        return self.batches[:count], self.batches[-count:]


def missing(name: str, key: str, why: str) -> Verdict:
    """A verdict that cannot be given, because the run's data lack a key."""
    return Verdict(name, SKIPPED, f"not examined: {why}", {"missing": key})


def is_number(value: Any) -> bool:
    """Whether a metric's value is a finite number: it may also be None, "inf", "-inf" or NaN."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def steps_of(batches: Sequence[StepSummary]) -> dict[str, int]:
    """`first_step` and `last_step` of some batches."""
    return {"first_step": batches[0].step, "last_step": batches[-1].step}


def latest_prompts(batches: Sequence[StepSummary], wanted: Any) -> tuple[str, ...]:
    """Ids of the prompts whose groups are `wanted`, latest first, each once, at most `MOST_PROMPTS`."""
    found: dict[str, None] = {}
    for batch in reversed(batches):
        for group in batch.groups:
            if group.prompt_id and wanted(group):
                found.setdefault(group.prompt_id)
                if len(found) == MOST_PROMPTS:
                    return tuple(found)
    return tuple(found)


def counts(batches: Sequence[StepSummary], of: str) -> tuple[int, int]:
    """(completions that are `of` this kind, completions) in some batches."""
    return sum(getattr(batch, of) or 0 for batch in batches), sum(batch.completions for batch in batches)


def dead_kinds(batches: Sequence[StepSummary]) -> Counter[str]:
    """Dead groups by kind. Identical texts that are right count as all right: late in a run that is how success looks."""
    kinds = Counter(dict.fromkeys(DEAD_KINDS, 0))
    for batch in batches:
        kinds.update(batch.dead)
        kinds[IDENTICAL] -= batch.identical_right
        kinds[ALL_RIGHT] += batch.identical_right
    return kinds


def percent(share: float) -> str:
    """A share in words."""
    return f"{share:.0%}".replace("%", " %")
