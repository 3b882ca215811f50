"""What a judge answered on trial, and the measures that follow, each with its limit."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from workbench.base.kinds import Fields
from workbench.health.trends import Z_95, Interval, paired_gain, share
from workbench.recipe import packaged

PASSED, FAILED, UNTOLD = "passed", "failed", "cannot be told"
NOT_HERE = "does not apply"
# Altered completion -> the one it is compared with.
TEMPTED = {
    "padded": "good", "markdown": "good", "white space": "good",
    "injected 0": "bad", "injected 1": "bad", "injected 2": "bad", "authority": "bad",
}  # fmt: skip
NOTES = tuple(name for name in TEMPTED if name.startswith("injected"))
# Each of them has to hold, so each is allowed a third of the error: z of 1 - 0.05 / 6, not / 2.
_WIDER = 2.394 / 1.96
GROUP = ("good", "bad", "cut", "refusal")
Names = tuple[str, ...]


class JudgeMeasure(NamedTuple):
    """One measure of a judge."""

    name: str
    asks: str  # what is measured, in words
    limit: float
    kind: str  # most, least, either: on which side of the limit the interval has to lie
    reason: str
    remedy: str
    verdict: str = NOT_HERE
    cases: int = 0
    value: float | None = None
    low: float | None = None
    high: float | None = None
    needed: int | None = None  # cases that would tell, about, where these were too few

    @property
    def limit_words(self) -> str:
        """The limit, and on which side of it the interval has to lie."""
        side = {"most": "at most ", "least": "at least ", "either": "within ±"}[self.kind]
        return f"{side}{self.limit:g}"

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.name}: {self.verdict}"
        interval = f"{self.low:.2f} to {self.high:.2f}"
        return f"{self.name} {self.value:.2f} ({interval}; {self.limit_words})"


@functools.cache
def trial_texts() -> Fields:
    return packaged(Path(__file__).with_name("trial.yaml"))


class Cases(NamedTuple):
    """What a judge answered, and the measures that follow."""

    ranks: bool
    right: np.ndarray  # [P, 2] whether the good and the wrong completion are right
    answers: dict[Names, np.ndarray]  # [P, times asked, names]; NaN: it could not be read

    def shown(self, *names: str) -> np.ndarray:
        """[P, names] the scores of completions, by themselves or as they were shown together."""
        if self.ranks:
            return self.answers[names][:, 0]
        return np.stack([self.answers[name,][:, 0, 0] for name in names], axis=1)

    def first_over_second(self, *names: str) -> np.ndarray:
        """[P] how much higher the first of two scores than the second."""
        return -np.diff(self.shown(*names), axis=1)[:, 0]

    def gained(self, name: str, over: str) -> np.ndarray:
        """[P] how much higher one scores than the other; over both orders, if they are ranked."""
        gained = self.first_over_second(name, over)
        return (gained - self.first_over_second(over, name)) / 2 if self.ranks else gained

    def measures(self, right: str) -> Iterator[JudgeMeasure]:
        lost = [np.isnan(own[:, :, 0]).ravel() for own in self.answers.values()]
        unreadable = np.concatenate(lost)
        again = self.answers[("good", "bad") if self.ranks else ("good",)][:, :, 0]
        spans = np.ptp(self.shown(*GROUP), axis=1)
        values: dict[str, Interval | None] = {
            "unreadable": share(unreadable.sum(), len(unreadable), Z_95),
            "agreement": self._agreement(),
            "self-agreement": _mean(np.abs(again[:, 0] - again[:, 1])),
            "position": None,
            "dead groups": share((spans == 0).sum(), (~np.isnan(spans)).sum(), Z_95),
        }
        if self.ranks:
            orders = [names for names in self.answers if len(names) == 2]
            values["position"] = _mean(
                np.mean([self.first_over_second(*order) for order in orders], axis=0)
            )
        for name, of in TEMPTED.items():
            values[{"padded": "verbosity"}.get(name, name)] = _mean(self.gained(name, of))
        values["injection"] = _worst([values[name] for name in NOTES])
        for name, about in trial_texts()["measures"].items():
            count = len(unreadable) if name == "unreadable" else len(self.right)
            found = _measured(name, about, values[name], count, right)
            if found.needed and count:  # prompts, each of which has several answers
                found = found._replace(needed=math.ceil(found.needed * len(self.right) / count))
            yield found

    def _agreement(self) -> Interval | None:
        # Of the pairs of which one is right, and between which it decides.
        sign = self.right[:, 0].astype(int) - self.right[:, 1]
        gains = self.gained("good", "bad") * sign
        return share((gains > 0).sum(), (np.abs(gains) > 0).sum(), Z_95) if sign.any() else None


def _worst(each: Sequence[Interval | None]) -> Interval:
    # A policy needs one that works.
    wide = [
        Interval(
            own.value,
            max(-1.0, own.value - _WIDER * (own.value - own.low)),
            min(1.0, own.value + _WIDER * (own.high - own.value)),
        )
        if own and not math.isnan(own.value)
        else Interval(math.nan, -1.0, 1.0)
        for own in each
    ]
    return max(wide, key=lambda own: (own.low, own.high))


def _mean(values: np.ndarray) -> Interval:
    known = values[~np.isnan(values)]
    if len(known) < 2:
        return Interval(math.nan, -1.0, 1.0)
    return paired_gain(np.zeros((len(known), 1)), known[:, None])


def _measured(
    name: str, about: Fields, found: Interval | None, cases: int, right: str
) -> JudgeMeasure:
    words = {part: about[part].format(right=right) for part in ("asks", "reason", "remedy")}
    measure = JudgeMeasure(name, **{**about, **words})
    if found is None:
        return measure
    (value, low, high), limit, kind = found, measure.limit, measure.kind
    inside, outside = {
        "most": (high <= limit, low > limit),
        "least": (low >= limit, high < limit),
        "either": (max(-low, high) <= limit, max(low, -high) > limit),
    }[kind]
    verdict = PASSED if inside else FAILED if outside else UNTOLD
    distance, needed = abs(limit - (abs(value) if kind == "either" else value)), None
    if verdict == UNTOLD and distance > 0:  # an interval narrows with the root of the cases
        would = max(3 / distance, cases * ((high - low) / 2 / distance) ** 2)
        needed = math.ceil(round(would, 6))
    known = None if math.isnan(value) else value
    return measure._replace(
        verdict=verdict, cases=cases, value=known, low=low, high=high, needed=needed
    )
