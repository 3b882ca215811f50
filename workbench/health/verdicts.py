"""Verdicts on a run, and the view of a run that the rules examine."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from workbench.base.kinds import Fields
from workbench.health.summary import CallSummary, FunctionSummary, GroupSummary, StepSummary
from workbench.health.trends import Interval, change_of_share, share, slope
from workbench.recipe import packaged
from workbench.rewards.groups import ALL_RIGHT, DEAD_KINDS, IDENTICAL
from workbench.run.metrics import KL
from workbench.run.rollouts import qualified

ALARM, WARNING, NOTE, OK, SKIPPED = STATES = ("alarm", "warning", "note", "ok", "skipped")

WINDOW = 20  # batches that describe the current state
LONG_WINDOW = 100  # batches over which a trend is looked for
MOST_PROMPTS = 8  # ids that a verdict names

_TEXTS = packaged(Path(__file__).with_name("texts.yaml"))
# The issues in the order of their verdicts, in words that go both before what is wrong and after
# "no sign of". The keys, which are their rules' names, are for scripts.
NAMES: dict[str, str] = _TEXTS["issues"]
# What causes a state, and its remedy.
CASES: dict[str, dict[str, str]] = _TEXTS["cases"]


@dataclass(frozen=True)
class Verdict:
    """One thing that can go wrong, and whether it has.

    "alarm" means stop and look, "note" is worth knowing; "skipped" has in `evidence` the key
    `missing`, or what it `needs`.
    """

    name: str  # the issue, a word for scripts
    state: str  # one of STATES
    line: str  # one sentence with its numbers
    evidence: Fields = field(default_factory=dict)  # those numbers, by name
    first_step: int | None = None  # that they are of
    last_step: int | None = None
    prompts: tuple[str, ...] = ()  # ids of prompts that show it, at most MOST_PROMPTS
    function: str = ""  # the reward function; empty: none in particular
    cause: str = ""  # what brings a run into this state
    remedy: str = ""  # what to do

    def __str__(self) -> str:
        line = f"{self.state}: {self.title}: {self.line}"
        return f"{line}\n  -> {self.remedy}" if self.remedy else line

    @property
    def title(self) -> str:
        """The issue in words."""
        return NAMES.get(self.name, self.name)

    @property
    def key(self) -> tuple[str, str]:
        """Identifies the same verdict from one step to the next."""
        return self.name, self.function


def worst_first(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """The worst first; of those alike, the one that began first, which is nearer to the cause."""
    return sorted(verdicts, key=lambda each: (STATES.index(each.state), each.first_step or 0))


@dataclass(frozen=True)
class RunConfig:
    """A run's requested settings, as far as verdicts need them. None: not known, as with a trainer
    that has no recipe.
    """

    # by reward function: its declared maximum
    best: dict[str, float | None] = field(default_factory=dict)
    max_completion_length: int | None = None  # tokens
    beta: float | None = None
    learning_rate: float | None = None
    temperature: float | None = None
    right_by: str | None = None
    # what right means where nobody has said it, as `run.rollouts.unstated_right` has it
    unstated_right: str = ""
    format_by: str | None = None
    fp16: bool = False
    settings: Fields = field(default_factory=dict)  # all that are known to be in force
    asked: tuple[str, ...] = ()  # settings that the recipe names
    warm_start: bool = False  # it was fine-tuned on right completions before the first step
    environment: bool = False  # its rollouts have one
    attached: bool = False  # somebody's own trainer trained it, so there is no recipe

    @classmethod
    def of(cls, settings: Fields, **more: object) -> RunConfig:
        """From GRPOConfig's names: those of `settings` that verdicts need, and `more` of the
        fields.
        """
        needed = ("max_completion_length", "beta", "learning_rate", "temperature")
        known: Fields = {name: settings.get(name) for name in needed}
        return cls(**known, settings=settings, **more)


@dataclass
class ExaminedRun:
    """One run as it is examined: the batches of its latest stage, the metrics of the same steps,
    and its configuration.

    `held_out` is as `run.held_out` reads it. A new stage has other prompts, rewards or settings, so
    nothing is compared across its beginning.
    """

    everything: list[StepSummary]
    all_rows: list[Fields]
    config: RunConfig
    held_out: Sequence[Fields] = ()

    @cached_property
    def batches(self) -> list[StepSummary]:
        """Those of the latest stage."""
        latest = itertools.takewhile(
            lambda batch: batch.stage == self.everything[-1].stage, reversed(self.everything)
        )
        return [*latest][::-1]

    @cached_property
    def recent(self) -> list[StepSummary]:
        """The batches that describe the current state."""
        return self.batches[-WINDOW:]

    @cached_property
    def rows(self) -> list[Fields]:
        """The metrics of the latest stage; all where there is no batch, and so one stage only."""
        first = self.batches[0].step if self.batches else -math.inf
        return [row for row in self.all_rows if (row.get("step") or 0) >= first]

    def numbers(self, key: str) -> list[tuple[int, float]]:
        """(step, value) of a metric, where it is a finite number."""
        return [
            (row.get("step") or 0, float(row[key])) for row in self.rows if is_finite(row.get(key))
        ]

    @cached_property
    def kl(self) -> list[tuple[int, float]]:
        """(step, KL) where it was measured: with beta = 0 a trainer may log a 0.0 that nobody
        measured.
        """
        values = self.numbers(KL)
        return values if self.config.beta != 0 or any(value for _, value in values) else []

    @cached_property
    def functions(self) -> list[FunctionSummary]:
        """The weighted functions of the latest batch."""
        return [function for function in self.batches[-1].functions if function.weight]

    @cached_property
    def calls(self) -> list[CallSummary]:
        """Those of the recent batches that have any turns."""
        return [own for batch in self.recent if (own := batch.calls)]

    def history(
        self, function: str, batches: Sequence[StepSummary] | None = None
    ) -> list[tuple[StepSummary, FunctionSummary]]:
        """Every batch that a function scored, of these or of the stage, with its numbers."""
        return [
            (batch, own)
            for batch in (self.batches if batches is None else batches)
            for own in batch.functions
            if own.name == function
        ]

    def differs(self, batches: Sequence[StepSummary] | None = None) -> dict[str, list[int]]:
        """Weighted function -> [groups within which its scores differ, groups of which it scored
        two completions or more].
        """
        return {
            function.name: [
                sum(getattr(own, of) for _, own in self.history(function.name, batches))
                for of in ("varies", "groups")
            ]
            for function in self.functions
        }

    @cached_property
    def rewards(self) -> list[float]:
        """`rewards_of` the batches in which a trend is sought."""
        return self.rewards_of(self.batches[-LONG_WINDOW:])

    def rewards_of(self, batches: Sequence[StepSummary]) -> list[float]:
        """Mean reward of each batch under the latest weights, so that a change of weights does not
        look like a trend.
        """
        weights = {function.name: function.weight for function in self.functions}
        return [
            sum(weights.get(own.name, 0.0) * (own.mean or 0.0) for own in batch.functions)
            for batch in batches
        ]

    @cached_property
    def reward_slope(self) -> Interval:
        """Change of `rewards` per batch."""
        return slope(self.rewards)

    @cached_property
    def helps_to_begin(self) -> str:
        """The remedy for a policy that is right in fewer than one of 50 completions, if the rewards
        can pay; empty for others.
        """
        right, of = counts(self.batches, "right")
        no_warm_start = self.config.attached or any(batch.calls for batch in self.batches)
        if no_warm_start or 50 * right >= of:
            return ""
        if self.config.warm_start:
            return (
                "; its warm start was too small: take more samples, more epochs or a higher"
                " learning_rate there"
            )
        return (
            "; if the rewards can pay, `warm_start: 32` in the recipe, which trains on rare right"
            " completions first"
        )

    def ends(self) -> tuple[list[StepSummary], list[StepSummary]]:
        """The first and the last batches of the stage, a quarter each, at least 3 and at most
        10.
        """
        count = min(10, max(3, len(self.batches) // 4))
        return self.batches[:count], self.batches[-count:]

    def rise(self, of: str) -> tuple[float, float, Interval]:
        """Share of the completions that are `of` this kind: (in the first batches, in the last
        ones, how much it rose).
        """
        first, last = (counts(batches, of) for batches in self.ends())
        end, risen = share(*last).value, change_of_share(first, last)
        return end - risen.value, end, risen

    def total(self, of: str, batches: Sequence[StepSummary] | None = None) -> int:
        """Sum of one count over some batches; None: the recent ones."""
        return sum(
            getattr(batch, of) or 0 for batch in (self.recent if batches is None else batches)
        )

    def dead_kinds(self, batches: Sequence[StepSummary] | None = None) -> Counter[str]:
        """Dead groups by kind. Identical texts that are right count as all right: late in a run
        that is how success looks.
        """
        kinds = Counter(dict.fromkeys(DEAD_KINDS, 0))
        for batch in self.recent if batches is None else batches:
            kinds.update(batch.dead)
            kinds.update({IDENTICAL: -batch.identical_right, ALL_RIGHT: batch.identical_right})
        return kinds

    def prompts(
        self, wanted: Callable[[GroupSummary], object], batches: Sequence[StepSummary] | None = None
    ) -> tuple[str, ...]:
        """Ids of the prompts whose groups are `wanted`, latest first, each once, at most
        `MOST_PROMPTS`.
        """
        ids = (
            group.prompt_id
            for batch in reversed(self.recent if batches is None else batches)
            for group in batch.groups
            if group.prompt_id and wanted(group)
        )
        return tuple(dict.fromkeys(ids))[:MOST_PROMPTS]

    def verdict(
        self,
        state: str,
        line: str,
        evidence: Fields,
        case: str = "",
        *,
        over: Sequence[StepSummary] | None = None,
        steps: tuple[int | None, int | None] | None = None,
        prompts: tuple[str, ...] = (),
        function: str = "",
        **words: object,
    ) -> Verdict:
        """A verdict of the calling rule, `over` some batches (None: the recent ones), or from a
        first to a last of `steps`.

        Cause and remedy are those of the case in texts.yaml, in which `evidence` and `words` stand;
        a verdict of ok has neither.
        """
        over = self.recent if over is None else over
        first, last = steps or ((over[0].step, over[-1].step) if over else (None, None))
        about = CASES[case] if case and state != OK else {}
        words = {**evidence, "begin": self.helps_to_begin, **words} if about else {}
        return Verdict(
            "",
            state,
            qualified(line, self.config.unstated_right),
            evidence,
            first,
            last,
            prompts,
            function,
            **{name: text.format(**words) for name, text in about.items()},
        )

    def too_few(self, batches: int, groups: int = 16) -> Verdict | None:
        """A skipped verdict where the window holds less than is needed; None where it holds
        enough.
        """
        if not self.batches:
            return not_examined("rollouts", "no batch was recorded")
        if len(self.batches) < batches:
            return early(batches, len(self.batches), "batches")
        count = self.total("group_count")
        return early(groups, count, "groups") if count < groups else None


Looks = Callable[[ExaminedRun], Verdict | list[Verdict]]
Rule = Callable[[ExaminedRun], list[Verdict]]


def rule(batches: int = 3, groups: int = 16) -> Callable[[Looks], Rule]:
    """Makes a function of an `ExaminedRun` a rule: its verdicts carry its name.

    They wait until the view holds this many batches and groups; 0 batches: the function checks for
    itself.
    """

    def made(looks: Looks) -> Rule:
        @functools.wraps(looks)
        def examine(view: ExaminedRun) -> list[Verdict]:
            waits = view.too_few(batches, groups) if batches else None
            verdicts = waits or looks(view)
            if isinstance(verdicts, Verdict):
                verdicts = [verdicts]
            return [dataclasses.replace(verdict, name=examine.__name__) for verdict in verdicts]

        return examine

    return made


def not_examined(key: str, why: str) -> Verdict:
    """A verdict that cannot be given because the run's data lack a key."""
    return Verdict("", SKIPPED, f"not examined: {why}", {"missing": key})


def early(needs: int, has: int, of: str, what: str = "") -> Verdict:
    """A verdict that has to wait for more."""
    line = f"too early to say: {has} of {needs} {what or of}"
    return Verdict("", SKIPPED, line, {"needs": needs, "has": has, "of": of})


def is_finite(value: object) -> bool:
    """Whether a metric's value is a finite number: it may also be None, "inf", "-inf" or NaN."""
    return isinstance(value, (int, float)) and math.isfinite(value)


def counts(batches: Sequence[StepSummary], of: str) -> tuple[int, int]:
    """(completions that are `of` this kind, completions) in some batches; "right": of those of
    which a function says so.
    """
    of_all = [batch.told if of == "right" else None for batch in batches]
    return (
        sum(getattr(batch, of) or 0 for batch in batches),
        sum(batch.completions if own is None else own for batch, own in zip(batches, of_all)),
    )
