"""How hard each prompt is for a policy: how often it was solved, and how many groups would teach
nothing.

`difficulty.jsonl`: a line with what was sampled and how, then one per prompt, as measured; an
interrupted one resumes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from workbench.base.errors import DataError
from workbench.base.kinds import Fields
from workbench.base.workspace import append_line, made, read_lines, resolve, shown
from workbench.data.split import step_of
from workbench.task import Row, fingerprint


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

        The filtered-out rows are also returned. DataError: the band is not within 0 to 1.
        """
        if not 0 <= low <= high <= 1:
            raise DataError(
                f"a band from {low} to {high}",
                rule="pass rates lie between 0 and 1, lowest first",
                remedy="use (0.0, 1.0) for all, (0.01, 0.99) for what is sometimes solved",
            )
        band = Band([], [], 0, (low, high), self.shares if self.solved else None)
        for row in self.rows:
            solved = self.solved.get(row_key(row))
            band.unmeasured += solved is None
            keeps = solved is None or low <= solved.rate <= high
            (band.kept if keeps else band.filtered_out).append(row)
        return band

    @property
    def shares(self) -> dict[str, float]:
        """Shares of the prompts that were solved `never`, `sometimes` and `always`."""
        kinds = [{0: "never", 1: "always"}.get(one.rate, "sometimes") for one in self._each]
        return {kind: _mean(map(kind.__eq__, kinds)) for kind in ("never", "sometimes", "always")}

    @property
    def finished(self) -> float:
        """Share of the completions that ended on their own: below 1, the limit cuts, or the policy
        cannot end its turn.
        """
        return sum(one.finished for one in self._each) / max(1, sum(one.of for one in self._each))

    @property
    def _each(self) -> list[Solved]:
        return [*self.solved.values()]

    def dead_groups(self, num_generations: int) -> float:
        """Estimated share of groups of this size that are all right or all wrong: by rightness
        alone, those teach nothing.
        """
        return expected_dead_share(self._each, num_generations)

    def __repr__(self) -> str:
        if not self.solved:
            return "difficulty not measured"
        parts = ", ".join(f"{share:.0%} {kind}" for kind, share in self.shares.items())
        most = max(one.of for one in self._each)
        limit = self.settings.get("max_completion_length")
        return (
            f"{len(self.solved)} prompts, {most} completions each: solved {parts}\n"
            f"{self.finished:.0%} of the completions ended before {limit} tokens"
        )


def _mean(values: Iterable[float]) -> float:
    values = [*values]
    return sum(values) / max(1, len(values))


def expected_dead_share(solved: Sequence[Solved], size: int) -> float:
    """Estimated share of groups of `size` completions that are all right or all wrong."""
    prior = _prior(solved)
    return _mean(dead_share(one.right, one.of, size, prior) for one in solved)


def dead_share(right: int, of: int, size: int, prior: tuple[float, float]) -> float:
    """Chance that a group of `size` completions of a prompt is all right or all wrong, from `right`
    of `of` completions.

    The share of all ways to draw a group from them; where they are too few, the mean over a beta
    distribution of the pass rate, which before any completion is `prior`.
    """
    from scipy import stats

    ends = (0, size)
    if of >= size:
        return float(stats.hypergeom.pmf(ends, of, right, size).sum())
    alpha, beta = prior
    return float(stats.betabinom.pmf(ends, size, alpha + right, beta + of - right).sum())


def _prior(solved: Sequence[Solved]) -> tuple[float, float]:
    # The beta distribution of the pass rate over the prompts, by moments; one completion of each
    # does not tell prompts apart.
    right, of = sum(one.right for one in solved), sum(one.of for one in solved)
    least = 0.5 / (of + 1)  # none, or all, of a few prove nothing
    mean = min(max(right / max(1, of), least), 1 - least)
    spread, tries = 0.0, of / max(1, len(solved))
    if tries > 1 and len(solved) > 1:
        variance = sum((one.rate - mean) ** 2 for one in solved) / (len(solved) - 1)
        spread = (variance / (mean * (1 - mean)) - 1 / tries) / (1 - 1 / tries)
    total = 1 / min(max(spread, 0.01), 0.99) - 1
    return mean * total, (1 - mean) * total


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
    before = profile.settings
    if differ := sorted(key for key in before | settings if before.get(key) != settings.get(key)):
        raise DataError(
            f"{shown(path)}: measured with another {', '.join(differ)}",
            rule="one profile holds measurements of one kind",
            remedy="delete the file to measure again, or choose another file",
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
    solved = {key: profile.solved[key] for key in wanted if key in profile.solved}
    return Profile(profile.settings, solved)


def pick(rows: Sequence[Row], count: int) -> list[Row]:
    """`count` rows spread over all of them, the same ones every time and everywhere."""
    return sorted(rows, key=row_key)[:count]


def load_profile(file: str | Path) -> Profile:
    """Read a profile; DataError if the file is not one."""
    path = resolve(file)
    first, *lines = [*read_lines(path)] or [{}]
    if "settings" not in first:
        raise DataError(
            f"{shown(path)}: not a difficulty profile",
            rule="its first line holds the settings",
            remedy="measure one with notebook 01",
        )
    return Profile(first["settings"], {line.pop("row"): Solved(**line) for line in lines})


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
