"""What is wrong with a task's rewards, read off the scores of its honest completions and its cheats.

Each rule looks at one table of scores and says what it finds, with the remedy. Errors are what a run would die of or
learn the wrong thing from; warnings are what is probably not meant; notes are worth knowing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from workbench.audit.probes import AROUND
from workbench.audit.reference_completion import AS_ASKED
from workbench.rewards.tracing import Unreached

HONEST, PROBE, SPELLING = "honest", "probe", "spelling"
RIGHT, WRONG = "right", "wrong"  # among the spellings
_CLOSE = 1e-6
_ALIKE = 0.8  # rank correlation over the cheats, from which two functions pay for one thing
_POOR = 0.5  # of the way to the highest score of all
_PAID = 0.9  # of the way from the lowest score to the highest honest one, where a function states no maximum


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or worth knowing.

    Args:
        kind: a word for scripts: cannot_pay, constant, hackable, padding, raises, late, returns, needs_column, signature,
            answer_column, chat_plain, layout, writes, unit, unbounded, spelling, sometimes, silence, unreached, overlap,
            scale, state, random, slow, right_by, evaluates, swallows, no_deadline, tokenizer, cut, case.
        severity: "error", "warning" or "note".
        function: the reward function; empty: the task as a whole.
    """

    kind: str
    severity: str
    function: str
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        name = f"{self.function}: " if self.function else ""
        return f"{self.severity}: {name}{self.text}" + (f"\n  -> {self.remedy}" if self.remedy else "")


class Text(NamedTuple):
    """One completion of the table."""

    row: int
    kind: str  # HONEST, PROBE or SPELLING
    name: str
    text: str
    right: bool = True
    own: bool = False


@dataclass(frozen=True)
class ScoreTable:
    """Completions of several rows and their scores."""

    texts: list[Text]
    names: list[str]  # functions
    scores: np.ndarray  # [N, F], NaN where a function did not apply or failed
    weights: np.ndarray  # [F]
    maxima: list[float | None]  # [F], as stated
    guessed: bool = (
        False  # the honest completions are a guess: the prompt says neither format nor answer, or one of them
    )
    shown: bool = True  # the prompt shows where the lines of the format break

    @property
    def totals(self) -> np.ndarray:
        """[N] weighted sums; NaN where no function applied."""
        silent = np.isnan(self.scores).all(axis=1)
        return np.where(silent, np.nan, np.nansum(self.scores * self.weights, axis=1))

    @property
    def honest_total(self) -> float:
        """Mean total of the honest completions; NaN if nothing applied to them."""
        return mean_of_known(self.totals[self.at(HONEST, AS_ASKED)])

    def at(self, kind: str, name: str | None = None) -> np.ndarray:
        """[N] which texts are of a kind (and name)."""
        return np.array([text.kind == kind and (name is None or text.name == name) for text in self.texts])

    def column(self, function: str) -> np.ndarray:
        """[N] scores of one function."""
        return self.scores[:, self.names.index(function)]


def paying(
    sheet: ScoreTable, function: str, unreached: Callable[[str], Sequence[Unreached]], varies: bool
) -> list[Finding]:
    """Whether an honest completion earns what the function has to give.

    Args:
        unreached: a function's name -> the branches that no honest completion reaches.
        varies: its score goes with the length, so a difference between honest completions says nothing.
    """
    scores, stated = sheet.column(function), sheet.maxima[sheet.names.index(function)]
    known = scores[~np.isnan(scores)]
    honest = scores[sheet.at(HONEST, AS_ASKED)]
    if not known.size or np.isnan(honest).all():
        return [Finding("sometimes", "note", function, "does not apply to the prompts that were tried (None for each)")]
    if known.max() - known.min() < _CLOSE:
        branches = unreached(function)
        if (
            branches
            and not any(branch.pays > 0 for branch in branches)
            and any(branch.takes < 0 for branch in branches)
        ):
            return [
                Finding(
                    "constant",
                    "warning",
                    function,
                    f"never strikes: {known[0]:g} for each of {known.size} completions" + _never(branches),
                    "add a completion that it is there for to the task's probes",
                )
            ]
        if sheet.guessed and any(branch.pays > 0 for branch in branches):
            return [
                Finding(
                    "constant",
                    "warning",
                    function,
                    f"{known[0]:g} for each of {known.size} completions, of which the honest one had to be guessed "
                    f"({sheet.texts[0].text[:80]!r})" + _never(branches),
                    "say how an honest completion looks: Task(ideal=lambda row: ...), and answer_column= if there are answers",
                )
            ]
        return [
            Finding(
                "constant",
                "error",
                function,
                f"cannot pay: {known[0]:g} for each of {known.size} completions, right, wrong or empty; from equal scores "
                "nothing is learnt" + _never(branches),
                "score what differs between completions; a function that only prints gets the weight 0",
            )
        ]
    honest_rows = [
        text.row for text, is_honest in zip(sheet.texts, sheet.at(HONEST, AS_ASKED), strict=True) if is_honest
    ]
    targets = [_target(sheet, scores, row, stated, known.min(), varies) for row in honest_rows]
    paid = [np.isnan(score) or score >= target for score, target in zip(honest, targets, strict=True)]
    if not any(paid):
        return [_cannot_pay(sheet, function, scores, honest, stated, targets, unreached)]
    found = []
    if not all(paid):
        index = paid.index(False)
        found.append(
            Finding(
                "sometimes",
                "warning",
                function,
                f"pays an honest completion in full on {sum(paid)} of {len(paid)} prompts; on prompt {honest_rows[index]} it "
                f"earns {honest[index]:g}",
                "look at that prompt and its answer: can it be earned there?",
            )
        )
    silence = mean_of_known(scores[sheet.at(PROBE, "empty")])
    if silence > np.nanmean(honest) + _CLOSE:
        found.append(
            Finding(
                "silence",
                "warning",
                function,
                f"an empty completion earns {silence:g} from it, an honest one {np.nanmean(honest):g}",
                "pay nothing to a completion without an answer, or weigh it far below the right answer",
            )
        )
    return found


def _target(
    sheet: ScoreTable, scores: np.ndarray, row: int, stated: float | None, lowest: float, varies: bool
) -> float:
    if stated is not None:
        return stated - _CLOSE
    if varies:
        return -np.inf
    mine = [text.row == row and text.kind in (HONEST, SPELLING) for text in sheet.texts]
    if np.isnan(scores[mine]).all():
        return -np.inf  # does not apply to this prompt
    best = np.nanmax(scores[mine])
    any_text = np.nanmax(scores[[text.row == row for text in sheet.texts]])
    if best < lowest + _POOR * (any_text - lowest):  # what pays is not what an honest policy writes
        best = any_text
    return lowest + _PAID * (best - lowest) if best > lowest else lowest + _CLOSE


def _cannot_pay(
    sheet: ScoreTable,
    function: str,
    scores: np.ndarray,
    honest: np.ndarray,
    stated: float | None,
    targets: list[float],
    unreached: Callable[[str], Sequence[Unreached]],
) -> Finding:
    of = stated if stated is not None else np.nanmax(scores)
    would = [
        text.name
        for text, score in zip(sheet.texts, scores, strict=True)
        if text.row == sheet.texts[0].row and text.kind == HONEST and text.name != AS_ASKED and score >= targets[0]
    ]
    only = f"; it pays only {' or '.join(would)}" if would else "; it pays no honest completion that was tried"
    cheats = [
        text.name
        for text, score in zip(sheet.texts, scores, strict=True)
        if text.row == sheet.texts[0].row and text.kind == PROBE and not text.right and score >= of - _CLOSE
    ]
    also = f"; {cheats[0]!r} earns {of:g}" if cheats else ""
    earns, never = f"{np.nanmean(honest):g} of {of:g}", _never(unreached(function))
    if sheet.guessed and not would and not cheats:
        return Finding(
            "cannot_pay",
            "warning",
            function,
            f"the honest completion had to be guessed ({sheet.texts[0].text[:80]!r}), and it earns {earns}{never}",
            "say how an honest completion looks: Task(ideal=lambda row: ...), and answer_column= if there are answers",
        )
    return Finding(
        "cannot_pay",
        "error" if sheet.shown or not would else "warning",  # which of its layouts a policy writes is open
        function,
        f"cannot pay: an honest completion in the format that the prompt asks for earns {earns}" + only + also + never,
        "compare the pattern with that completion, character by character: line breaks (re.DOTALL), white space around the "
        "answer, numbers against text",
    )


def _never(branches: Sequence[Unreached]) -> str:
    paid = [branch for branch in branches if branch.pays > 0]
    return f"; never reached: {paid[0]}" if paid else ""


def hackable(sheet: ScoreTable) -> list[Finding]:
    """The cheats that earn as much as an honest answer, and the right but wasteful ones that earn more."""
    honest, lowest = sheet.honest_total, float(np.nanmin(sheet.totals)) if np.isfinite(sheet.totals).any() else np.nan
    if not np.isfinite(honest) or (sheet.guessed and honest <= lowest + _CLOSE):
        return []  # what an honest answer would be is not known
    standing = leaderboard(sheet)
    # What the worst earns is no pay, though an honest one earns no more.
    paid = max(honest, lowest + 2 * _CLOSE)
    cheats = [cheat for cheat in standing if not cheat.right and cheat.total >= paid - _CLOSE]
    waste = [cheat for cheat in standing if cheat.right and cheat.total > honest + _CLOSE]
    found = []
    for kind, these in (("a cheat", cheats), ("a padded answer", waste)):
        if these:
            best = these[0]
            others = f" (and no less than that honest answer: {_listed([cheat.name for cheat in these[1:]])})"
            found.append(
                Finding(
                    "hackable",
                    "error",
                    _payer(sheet, best),
                    f"{kind} earns {best.total:g}, an honest answer {honest:g}: {best.name!r}"
                    + (others if len(these) > 1 else ""),
                    "pay only for what an honest answer has and this one has not",
                )
            )
    around = [cheat.name for cheat in standing if cheat.name in AROUND and abs(cheat.total - honest) <= _CLOSE]
    if around and not cheats and honest > lowest + _CLOSE:
        found.append(
            Finding(
                "padding",
                "warning",
                "",
                f"{_listed(around)} earns as much as the honest answer alone: no function minds what stands around it",
                "if the format is to be kept strictly, pay for it (strict_format_reward), or for being short",
            )
        )
    return found


def _payer(sheet: ScoreTable, probe: ProbeResult) -> str:
    # The function that pays a cheat most; where none does, or it is right, the one that pays it most beyond an honest one.
    if len(sheet.names) == 1:
        return sheet.names[0]
    paid = _paid(sheet, sheet.at(PROBE, probe.name))
    more = paid - _paid(sheet, sheet.at(HONEST, AS_ASKED))
    chosen = more if probe.right or paid.max() <= _CLOSE else paid + _CLOSE * np.sign(more)
    return sheet.names[int(chosen.argmax())] if chosen.max() > 0 else ""


def _paid(sheet: ScoreTable, which: np.ndarray) -> np.ndarray:
    weighted = sheet.scores[which] * sheet.weights
    return np.nan_to_num([mean_of_known(column) for column in weighted.T], nan=0.0)


def _listed(names: Sequence[str], most: int = 4) -> str:
    shown = ", ".join(repr(name) for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


class ProbeResult(NamedTuple):
    """One cheat on the leaderboard. Scores are means over the rows."""

    name: str
    total: float
    share: float | None  # of an honest answer's total; None where that is not above 0
    scores: dict[str, float]  # by function, unweighted; NaN where none applied
    right: bool
    own: bool
    example: str


def leaderboard(sheet: ScoreTable) -> list[ProbeResult]:
    """Every cheat, the best paid first, and of equals the shortest."""
    honest = sheet.honest_total
    found = []
    for name in dict.fromkeys(text.name for text in sheet.texts if text.kind == PROBE):
        mine = sheet.at(PROBE, name)
        total = mean_of_known(sheet.totals[mine])
        first = next(text for text in sheet.texts if text.kind == PROBE and text.name == name)
        scores = {function: mean_of_known(sheet.column(function)[mine]) for function in sheet.names}
        share = total / honest if honest > _CLOSE else None
        found.append(ProbeResult(name, total, share, scores, first.right, first.own, first.text))
    return sorted(
        found, key=lambda cheat: (-round(cheat.total, 9) if cheat.total == cheat.total else np.inf, len(cheat.example))
    )


def mean_of_known(values: np.ndarray) -> float:
    """The mean without the NaNs; NaN if there is nothing else."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")


def spelling(sheet: ScoreTable, function: str) -> list[Finding]:
    """Right answers, written in another way, that a function which looks at the answer does not pay."""
    scores = sheet.column(function)
    honest, wrong = scores[sheet.at(SPELLING, RIGHT)], scores[sheet.at(SPELLING, WRONG)]
    known = wrong.size and np.isfinite(wrong).any() and np.isfinite(honest).any()
    if not known or not np.nanmax(honest) > np.nanmax(wrong) + _CLOSE:
        return []  # it does not look at the answer
    best: dict[int, dict[str, float]] = {}  # by row and spelling
    for text, score in zip(sheet.texts, scores, strict=True):
        if text.kind == SPELLING and score == score:
            row = best.setdefault(text.row, {})
            row[text.name] = max(score, row.get(text.name, -np.inf))
    ways: dict[str, str] = {}  # one example of each way that is not paid somewhere
    for row in best.values():
        if row.get(RIGHT, -np.inf) > (low := row.get(WRONG, np.inf) + _CLOSE):
            for name, score in row.items():
                if score <= low and name != WRONG:
                    ways.setdefault(next((mark for mark in (".0", "$", ",") if mark in name), "."), name)
    unpaid = list(ways.values())
    if not unpaid:
        return []
    return [
        Finding(
            "spelling",
            "warning",
            function,
            f"the right answer earns no more than a wrong one when it is written {' or '.join(unpaid)}",
            "compare numbers, not texts: workbench.rewards.answers.same_answer",
        )
    ]


def overlaps(sheet: ScoreTable) -> list[Finding]:
    """Functions that rank these completions alike: they pay twice for one thing."""
    found = []
    cheats = sheet.at(PROBE)
    for second in range(len(sheet.names)):
        for first in range(second):
            if sheet.weights[first] and sheet.weights[second]:
                alike = _rank_correlation(sheet.scores[cheats, first], sheet.scores[cheats, second])
                if alike >= _ALIKE:
                    found.append(
                        Finding(
                            "overlap",
                            "note",
                            sheet.names[second],
                            f"ranks the cheats much as {sheet.names[first]} does (rank correlation {alike:.2f}): "
                            "one thing is paid twice",
                            "give one of the two less weight, if that is not meant",
                        )
                    )
    return found


def _rank_correlation(first: np.ndarray, second: np.ndarray) -> float:
    both = ~(np.isnan(first) | np.isnan(second))
    if both.sum() < 3:
        return 0.0
    a, b = (_ranks(values[both]) for values in (first, second))
    if a.std() < _CLOSE or b.std() < _CLOSE:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[inverse]
