"""How hard each prompt is for a policy: how often it was solved, and how many groups would teach
nothing.

`difficulty.jsonl`: a line with what was sampled and how, then one per prompt, as measured; an
interrupted one resumes.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from workbench.data.split import step_of
from workbench.errors import DataError
from workbench.kinds import Fields
from workbench.task import Row, fingerprint
from workbench.workspace import append_line, made, read_lines, resolve, shown


class Solved(NamedTuple):
    """How often one prompt was solved: `right` of `of` completions; `finished` of them ended on
    their own.
    """

    right: int
    of: int
    finished: int

    @property
    def rate(self) -> float:
        return self.right / self.of


def row_key(row: Row) -> str:
    """What a measurement belongs to: the whole row, so that a corrected answer is measured
    again.
    """
    return fingerprint([row])


@dataclass
class Profile:
    """How a policy does on prompts. `solved` is by `row_key`, as measured; `rows` are the rows they
    were picked from.
    """

    settings: Fields
    solved: dict[str, Solved]
    rows: Sequence[Row] = ()

    def within(self, low: float = 0.0, high: float = 1.0) -> Band:
        """The rows whose pass rate lies in a band, both ends included; rows that were not measured
        are kept, and counted.

        The filtered-out rows are also returned. DataError: the band is empty, or not within 0 to 1.
        """
        if not 0 <= low <= high <= 1:
            remedy = "use (0.0, 1.0) for all, (0.01, 0.99) for what is sometimes solved"
            raise DataError(
                f"a band from {low} to {high}",
                rule="pass rates lie between 0 and 1, lowest first",
                remedy=remedy,
            )
        band = Band([], [], 0, (low, high), self.shares if self.solved else None)
        for row in self.rows:
            solved = self.solved.get(row_key(row))
            band.unmeasured += solved is None
            (
                band.kept if solved is None or low <= solved.rate <= high else band.filtered_out
            ).append(row)
        return band

    @property
    def shares(self) -> dict[str, float]:
        """Shares of the prompts that were solved `never`, `sometimes` and `always`."""
        found = Counter(
            {0: "never", 1: "always"}.get(one.rate, "sometimes") for one in self.solved.values()
        )
        return {
            which: found[which] / max(1, found.total())
            for which in ("never", "sometimes", "always")
        }

    @property
    def finished(self) -> float:
        """Share of the completions that ended on their own: below 1, the limit cuts, or the policy
        cannot end its turn.
        """
        return sum(s.finished for s in self.solved.values()) / max(
            1, sum(s.of for s in self.solved.values())
        )

    def dead_groups(self, num_generations: int) -> float:
        """Estimated share of groups of this size that are all right or all wrong: by rightness
        alone, those teach nothing.
        """
        return sum(dead_share(s.right, s.of, num_generations) for s in self.solved.values()) / max(
            1, len(self.solved)
        )

    def __repr__(self) -> str:
        if not self.solved:
            return "difficulty not measured"
        parts = ", ".join(f"{share:.0%} {which}" for which, share in self.shares.items())
        each = max(solved.of for solved in self.solved.values())
        ended = (
            f"{self.finished:.0%} of the completions ended before"
            f" {self.settings.get('max_completion_length')} tokens"
        )
        seldom = 50 * sum(s.right for s in self.solved.values()) < sum(
            s.of for s in self.solved.values()
        )
        helps = (
            "\nalmost never solved: if the reward can pay (`workbench probe`), begin with"
            " `warm_start: 32` in the recipe"
        )
        return (
            f"{len(self.solved)} prompts, {each} completions each: solved"
            f" {parts}\n{ended}{helps * seldom}"
        )


def dead_share(right: int, of: int, size: int) -> float:
    """Chance that a group of `size` completions of a prompt is all right or all wrong, from `right`
    of `of` completions.

    The share of all ways to draw a group from them; where they are too few, the mean over a uniform
    prior of the pass rate.
    """
    wrong = of - right
    if of >= size:
        return (math.comb(right, size) + math.comb(wrong, size)) / math.comb(of, size)

    def all_of(a: int, b: int) -> float:
        return math.exp(
            math.lgamma(a + size) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(a + b + size)
        )

    return all_of(right + 1, wrong + 1) + all_of(wrong + 1, right + 1)


def measure_difficulty(
    rows: Sequence[Row],
    attempt: Callable[[Sequence[Row]], Iterable[Solved]],
    file: str | Path,
    settings: Fields,
    *,
    batch: int = 16,
    progress: Callable[[int, int], None] | None = None,
) -> Profile:
    """Measure the prompts that the file does not hold yet, and append each batch; after an
    Interrupt the next call resumes.

    Args:
        attempt: samples and scores completions: rows -> one `Solved` a row.
        settings: what decides the outcome (policy, rewards, ...); DataError if the file was
            measured with others.
        batch: prompts at a time.
        progress: called with (prompts measured, prompts in all) after each batch.
    """
    path = resolve(file)
    settings = json.loads(json.dumps(settings, sort_keys=True, default=str))
    if not path.is_file() or not path.stat().st_size:
        made(path.parent)
        append_line(path, {"settings": settings})
    profile = load_profile(path)
    if profile.settings != settings:
        differ = sorted(
            key
            for key in {*settings, *profile.settings}
            if settings.get(key) != profile.settings.get(key)
        )
        rule, remedy = (
            "one profile holds measurements of one kind",
            "delete the file to measure again, or choose another file",
        )
        raise DataError(
            f"{shown(path)}: measured with another {', '.join(differ)}", rule=rule, remedy=remedy
        )
    wanted = {row_key(row): row for row in rows}
    missing = [key for key in wanted if key not in profile.solved]
    done = len(wanted) - len(missing)
    try:
        for start in range(0, len(missing), batch):
            keys = missing[start : start + batch]
            for key, solved in zip(keys, attempt([wanted[key] for key in keys]), strict=True):
                append_line(path, {"row": key, **solved._asdict()})
                profile.solved[key] = solved
            done += len(keys)
            if progress is not None:
                progress(done, len(wanted))
    except KeyboardInterrupt:
        print(
            f"stopped: {done} of {len(wanted)} prompts are measured and kept in {shown(path)}; run"
            " it again to resume"
        )
    return Profile(
        profile.settings, {key: profile.solved[key] for key in wanted if key in profile.solved}
    )


def pick(rows: Sequence[Row], count: int) -> list[Row]:
    """`count` rows spread over all of them, the same ones every time and everywhere."""
    return sorted(rows, key=row_key)[:count]


def load_profile(file: str | Path) -> Profile:
    """Read a profile; DataError if the file is not one."""
    path = resolve(file)
    first, *lines = [*read_lines(path)] or [{}]
    if "settings" not in first:
        remedy = "measure one with notebook 01"
        raise DataError(
            f"{shown(path)}: not a difficulty profile",
            rule="its first line holds the settings",
            remedy=remedy,
        )
    return Profile(
        first["settings"],
        {line["row"]: Solved(line["right"], line["of"], line["finished"]) for line in lines},
    )


@dataclass
class Band:
    """Rows within a band of pass rates, those outside it, and how many of the kept ones were never
    measured.
    """

    kept: list[Row]
    filtered_out: list[Row]
    unmeasured: int
    pass_rates: tuple[float, float]
    shares: dict[str, float] | None  # of the profile; None: nothing was measured

    def steps(self, completions_per_step: int, num_generations: int) -> str:
        """As `Split.steps`, of the rows that are kept."""
        return step_of(len(self.kept), completions_per_step, num_generations)

    def record(self) -> Fields | None:
        """For the dataset's card."""
        return None if self.shares is None else {"pass_rates": self.pass_rates, **self.shares}

    def __repr__(self) -> str:
        return (
            f"{len(self.kept)} rows kept ({self.unmeasured} of them not measured),"
            f" {len(self.filtered_out)} filtered out"
        )
