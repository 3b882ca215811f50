"""The one batch type: the reward suite makes it in memory, and a run's record is read back into
it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from workbench.base.kinds import Fields, Prompt
from workbench.base.printable import printable

LARGEST_WEIGHT = 1e6  # of a reward function: TRL adds the weighted scores in 32 bits
NO_SPREAD = 1e-8  # a std below this is rounding: the completions score the same


class Groups(NamedTuple):
    """Totals and advantages of B = P * G completions, prompts in order, the completions of a prompt
    together.
    """

    totals: np.ndarray  # [P * G] weighted sum of the functions; NaN where no function applied
    means: np.ndarray  # [P * G] mean of the completion's group
    stds: np.ndarray  # [P * G] std of the completion's group (Bessel-corrected)
    advantages: np.ndarray  # [P * G]


@dataclass(frozen=True, eq=False, repr=False)
class ScoredBatch:
    """One generation batch of B = P * G completions, scored by F functions; a prompt's completions
    lie together.

    In a notebook's cell it is a table of completions, scores, totals and advantages.
    """

    step: int
    names: list[str]  # [F]
    weights: list[float]  # [F]
    num_generations: int  # G
    prompts: list[Prompt]  # [B]
    completions: list[str]  # [B]
    lengths: np.ndarray  # [B] tokens
    columns: dict[str, list[Any]]  # the dataset columns that the functions saw, [B] each
    scores: np.ndarray  # [B, F], NaN where a function did not apply or failed
    groups: Groups
    # [B] bool, masked in a group of which no function says what is right: `np.ma`
    right: np.ma.MaskedArray
    stage: str = "1"
    # [B] bool: ended with one of the trainer's EOS tokens; None: not known
    finished: np.ndarray | None = None
    scale_rewards: str | bool = "group"
    aggregation: str = "sum_then_normalize"
    format_by: str | None = None  # the function that says whether the format is kept
    reward_hash: str = ""
    # function -> index of the completion -> what it did
    errors: dict[str, dict[int, str]] = field(default_factory=dict)
    # wall time of each function; in memory only
    seconds: dict[str, float] = field(default_factory=dict)
    completion_ids: list[list[int]] = field(default_factory=list)  # [B]; in memory only
    places: np.ndarray | None = None  # [P] index of each group within its step; None: 0 to P - 1
    # [B] the turns of each (run/turns.py); empty: of one
    turns: list[list[Any]] = field(default_factory=list)
    # steps of the batches that follow in the same arrays, each as large (`read_part`, joined)
    later: list[int] = field(default_factory=list)

    @property
    def totals(self) -> np.ndarray:
        """[B] weighted sum of the functions' scores; NaN where none applied."""
        return self.groups.totals

    @property
    def advantages(self) -> np.ndarray:
        """[B] the advantage of each completion."""
        return self.groups.advantages

    def __str__(self) -> str:
        header = [*self.names, "total", "advantage"]
        lines = ["  ".join([*header, "completion"])]
        columns = *self.scores.T, self.totals, self.advantages
        for text, *values in zip(self.completions, *columns, strict=True):
            cells = [
                f"{'-' if value != value else f'{value:.3g}':>{len(name)}}"
                for name, value in zip(header, values)
            ]
            shown = text if len(text) <= 60 else f"{text[:59]}…"
            lines.append("  ".join([*cells, printable(repr(shown))]))
        return "\n".join(lines)

    __repr__ = __str__

    @property
    def group_count(self) -> int:
        """P."""
        return len(self.completions) // self.num_generations

    @property
    def group_places(self) -> np.ndarray:
        """Index of each group within its step: [P]."""
        return np.arange(self.group_count) if self.places is None else self.places

    @property
    def shares(self) -> dict[str, float]:
        """Shares of the P groups: "dead"; and, of those of which a function says what is right,
        "mixed" (right and wrong), "all right" and "all wrong", which add up to 1, or are NaN.
        """
        right = np.ma.reshape(self.right, (-1, self.num_generations)).mean(axis=1)
        kinds = {
            "mixed": (right > 0) & (right < 1),
            "all right": right == 1,
            "all wrong": right == 0,
            "dead": self.dead,
        }
        return {kind: float(np.ma.filled(np.mean(own), np.nan)) for kind, own in kinds.items()}

    @property
    def dead(self) -> np.ndarray:
        """Which of the P groups teach nothing: [P] bool."""
        if self.aggregation == "normalize_then_sum":  # equal totals can hide unequal advantages
            by_group = np.abs(self.advantages).reshape(-1, self.num_generations)
            return by_group.max(axis=1) < NO_SPREAD
        return np.nan_to_num(self.groups.stds[:: self.num_generations]) < NO_SPREAD

    @property
    def prompt_ids(self) -> list[str]:
        """[B] prompt ids; empty strings where the rows have none."""
        return [str(own) for own in self.columns.get("prompt_id") or [""] * len(self.completions)]

    @property
    def rows(self) -> list[Fields]:
        """[B] the row of each completion: its prompt and the columns, to score it again."""
        names = ("prompt", *self.columns)
        return [
            dict(zip(names, row, strict=True))
            for row in zip(self.prompts, *self.columns.values(), strict=True)
        ]

    def as_trained(self, stage: str, eos_ids: Collection[int]) -> ScoredBatch:
        """The same batch with what only the trainer knows: its stage, and which completions ended
        on their own.
        """
        ended = [bool(len(tokens)) and tokens[-1] in eos_ids for tokens in self.completion_ids]
        return dataclasses.replace(self, stage=stage, finished=np.array(ended, dtype=bool))

    def group(self, index: int) -> ScoredBatch:
        """One of the P groups as a batch."""
        start = index * self.num_generations
        own = slice(start, start + self.num_generations)
        errors: dict[str, dict[int, str]] = {}
        for name, of_all in self.errors.items():
            if of_group := {at - start: of_all[at] for at in of_all if start <= at < own.stop}:
                errors[name] = of_group
        whole = ("prompts", "completions", "lengths", "scores", "right", "completion_ids", "turns")
        return dataclasses.replace(
            self,
            **{name: getattr(self, name)[own] for name in whole},
            columns={name: values[own] for name, values in self.columns.items()},
            groups=Groups(*(values[own] for values in self.groups)),
            finished=None if self.finished is None else self.finished[own],
            errors=errors,
            places=self.group_places[index : index + 1],
        )
