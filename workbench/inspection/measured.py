"""A policy's completions on held-out prompts in numbers, and two of them compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from workbench.base.kinds import Fields, Prompt
from workbench.data.difficulty import Solved
from workbench.inspection import statistics
from workbench.rewards.answers import find_answer
from workbench.run.turns import Turn
from workbench.task import Row

_ENDS = ("correct", "low", "high")  # of a share or a gain with its interval


@dataclass(frozen=True)
class Measured:
    """A policy on P prompts, G completions each. Arrays are [P, G]."""

    completions: list[list[str]]
    lenient: np.ndarray  # bool: right, whatever the format
    # bool: keeps the strict format; None where the task does not measure it
    format: np.ndarray | None
    finished: np.ndarray  # bool: ended before the limit
    total: np.ndarray  # weighted reward
    answer_tag: str = "answer"  # where its task asks for the answer
    turns: list[list[list[Turn]]] = field(default_factory=list)  # [P][G]; empty: of one turn each

    @property
    def correct(self) -> np.ndarray:
        """Right, and in the strict format where there is one: [P, G] bool."""
        return self.lenient if self.format is None else self.lenient & self.format

    @property
    def content(self) -> tuple[float, float, float] | None:
        """(share, low, high) that are right among the completions in the strict format, with its
        95 % interval; None: there are none, or the format is not measured.
        """
        return None if self.format is None else statistics.ratio_interval(self.correct, self.format)

    @property
    def numbers(self) -> dict[str, np.ndarray | None]:
        """What is measured of each completion, by the names that results have it under."""
        return {
            "correct": self.correct,
            "correct_lenient": self.lenient,
            "format": self.format,
            "finished": self.finished,
            "reward": self.total,
        }

    def some(self, places: list[int]) -> Measured:
        """The same policy on some of the prompts."""
        arrays = {
            name: value[places]
            for name, value in vars(self).items()
            if isinstance(value, np.ndarray)
        }
        completions = [self.completions[place] for place in places]
        turns = [self.turns[place] for place in places] if self.turns else []
        return dataclasses.replace(self, completions=completions, turns=turns, **arrays)

    def shares(self) -> dict[str, float | None]:
        """The shares of all completions: `correct` (strict), `correct_lenient`, `format`,
        `finished`; mean `reward`.
        """
        return {
            name: None if values is None else float(np.nanmean(values))
            for name, values in self.numbers.items()
        }

    def pass_at_k(self) -> np.ndarray:
        """[P, G]: strict pass@k of each prompt, for k = 1 to G."""
        return statistics.pass_at_k(self.correct.sum(axis=1), self.correct.shape[1])

    def majority(self) -> float:
        """The share of prompts whose most frequent answer is right: what is in tags, after a mark
        or in a box, else all. Completions in the strict format vote, where there is one.
        """
        votes = np.ones_like(self.lenient) if self.format is None else self.format
        answers = [
            [_answer(text, self.answer_tag) if vote else None for text, vote in zip(*own)]
            for own in zip(self.completions, votes)
        ]
        return float(statistics.majority(answers, self.correct).mean())

    def best_of(self) -> float:
        """The share of prompts whose completion with the highest reward is right."""
        return float(statistics.best_of_n(self.total, self.correct).mean())


def _answer(text: str, tag: str) -> str:
    answers = (find_answer(text, where, tag) for where in ("tag", "mark", "boxed"))
    return next(filter(None, answers), text)


@dataclass(frozen=True, repr=False)
class Evaluation:
    """Base and trained policy on the same held-out prompts; a cell shows the shares before and
    after, pass@k, and the gain.
    """

    prompts: list[Prompt]
    before: Measured
    after: Measured
    # what said which completions are right: a function, or "function >= threshold"
    right_by: str = ""
    # base and trained, one completion a prompt: the likeliest tokens
    greedy: tuple[Measured, Measured] | None = None
    # by step; 0: base. Empty where no checkpoints were asked for
    curve: dict[int, Measured] = field(default_factory=dict)
    rows: Sequence[Row] = ()  # [P] the held-out rows, with their answers
    silent: int = 0  # further prompts, left out: nothing says what is right of them

    @cached_property
    def found(self) -> Fields:
        """What `evaluation.json` holds: the shares before and after, the paired gain, and its
        verdict.
        """

        def both(of: Callable[[Measured], object], policies: Sequence[Measured] = ()) -> Fields:
            return dict(zip(("before", "after"), map(of, policies or (self.before, self.after))))

        correct = self.before.correct, self.after.correct
        prompts, samples = self.before.correct.shape
        low, high = statistics.bootstrap_interval(correct[1].mean(axis=1) - correct[0].mean(axis=1))
        found = {
            **both(Measured.shares),
            "gain": dict(zip(_ENDS, statistics.share_gain(*correct))),
            "prompts": prompts,
            "samples": samples,
            "silent": self.silent,
            "right_by": self.right_by,
            "bootstrap": {"low": float(low), "high": float(high)},
            "needed": statistics.needed(*correct),
            "detectable": statistics.detectable(prompts, samples),
            "majority": both(Measured.majority),
            "pass_at_k": both(lambda policy: policy.pass_at_k().mean(axis=0).tolist()),
            "best_of": both(Measured.best_of),
            "verdict": dict(zip(("word", "why"), statistics.taught_or_sharpened(*correct))),
        }
        if self.before.format is not None:
            found["content"] = both(
                lambda policy: policy.content and dict(zip(_ENDS, policy.content))
            )
        if self.greedy:
            changed = statistics.mcnemar(*(policy.correct[:, 0] for policy in self.greedy))
            found["greedy"] = both(Measured.shares, self.greedy)
            found["mcnemar"] = dict(zip(("fixed", "broken", "p"), changed))
        found["curve"] = [
            {"step": step, **dict(zip(_ENDS, statistics.share_interval(policy.correct)))}
            for step, policy in self.curve.items()
        ]
        return found

    @property
    def solved(self) -> list[Solved]:
        """How often the trained policy solved each prompt."""
        correct, finished = self.after.correct, self.after.finished
        counts = zip(correct.sum(axis=1).tolist(), finished.sum(axis=1).tolist())
        return [Solved(right, correct.shape[1], ended) for right, ended in counts]

    @property
    def pairs(self) -> list[tuple[str, np.ndarray, np.ndarray]]:
        """(what is counted, before, after), arrays [P, G] of bools."""
        before, after = self.before, self.after
        pairs = [
            ("correct, strict format", before.correct, after.correct),
            ("correct, lenient", before.lenient, after.lenient),
        ]
        if before.format is not None and after.format is not None:
            pairs.append(("strict format", before.format, after.format))
        return pairs

    def __str__(self) -> str:
        found, n = self.found, self.found["samples"]
        old, new = found["before"], found["after"]
        lines = [
            f"{gain_in_words(found)}; {found['prompts']} held-out prompts, {n} completions each"
        ]
        if self.silent:
            lines.append(
                f"{self.silent} more prompts are left out: {self.right_by} scored no completion of"
                " them"
            )
        if found["needed"]:
            lines.append(
                f"the interval contains 0: about {found['needed']:,} more prompts detect such a"
                " gain with 80 % power"
            )
        lines += [
            *filter(None, [form_and_content(found)]),
            "taught or sharpened " * (found["verdict"]["word"] == statistics.UNTOLD)
            + "{word}: {why}".format(**found["verdict"]),
            f"mean reward {old['reward']:.2f} -> {new['reward']:.2f}; "
            f"ended before the limit {old['finished']:.0%} -> {new['finished']:.0%}",
        ]
        if n > 1:
            lines += self._tries()
        if "greedy" in found:
            shares = " -> ".join(f"{own['correct']:.0%}" for own in found["greedy"].values())
            changed = "{fixed} prompts fixed, {broken} broken, exact McNemar p = {p:.2g}"
            lines.append(f"greedy {shares}: {changed.format(**found['mcnemar'])}")
        point = "step {step}: {correct:.0%} ({low:.0%} to {high:.0%})"
        lines += [point.format(**values) for values in found["curve"]]
        # else no prompt differs from another: nothing to draw from
        if found["bootstrap"]["low"] < found["bootstrap"]["high"]:
            interval = statistics.in_points(**found["bootstrap"])
            lines.append(f"the gain's interval by bootstrap over prompts (BCa): {interval}")
        return "\n".join(lines)

    def _tries(self) -> list[str]:
        found, n = self.found, self.found["samples"]
        ks = [2**power for power in range(n.bit_length())]
        curves = [", ".join(f"{own[k - 1]:.0%}" for k in ks) for own in found["pass_at_k"].values()]
        changes = "{before:.0%} -> {after:.0%}".format
        return [
            f"pass@{', '.join(map(str, ks))}: {' -> '.join(curves)}",
            f"majority of {n} {changes(**found['majority'])}; best of {n} by the training reward"
            f" {changes(**found['best_of'])}",
        ]

    __repr__ = __str__


def gain_in_words(found: Fields) -> str:
    """The gain in an `evaluation.json`, in a line. Where the two cannot differ, +0 from 0 to 0
    would not be a result.
    """
    before, after, gain = found["before"], found["after"], found["gain"]
    if before["correct_lenient"] == after["correct_lenient"] == 0:
        who = found.get("right_by") or "the function that decides"
        nothing = "held nowhere" if ">=" in who else "paid nothing anywhere"
        return (
            f"no completion was right, before or after: {who} {nothing}, so no gain can be measured"
        )
    if before["correct"] == after["correct"] == 0:
        return (
            "no completion was both right and in the strict format, before or after, so no gain can"
            " be measured"
        )
    if before["correct"] == after["correct"] == 1:
        return (
            "every completion was right, before and after: there is nothing left to gain on these"
            " prompts"
        )
    interval = statistics.in_points(gain["low"], gain["high"])
    if gain["high"] < 0:
        return f"WORSE by {-100 * gain['correct']:.0f} points, 95 % interval {interval}"
    return f"gain {100 * gain['correct']:+.0f} points, 95 % interval {interval}"


def content_in_words(found: Fields) -> str:
    """How many of the completions in the strict format are right, before and after, with intervals,
    from an `evaluation.json`; empty where it does not say, or none keeps the format.
    """
    content = found.get("content") or {}
    share = "{correct:.0%} ({low:.0%} to {high:.0%})".format
    ends = [share(**own) if own else "none" for own in content.values()]
    return " -> ".join(ends) if any(content.values()) else ""


def form_and_content(found: Fields) -> str:
    """In a line, how many completions keep the strict format and how many of those are right."""
    if not (right := content_in_words(found)):
        return ""
    kept = " -> ".join(f"{found[when]['format']:.0%}" for when in found["content"])
    return f"in the strict format {kept}; of those, right {right}"
