"""What an evaluation measured, as `evaluation.parquet` keeps it: every completion, a row each."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from workbench.audit.prompt_format import parse_format
from workbench.base.errors import RunError
from workbench.base.kinds import Fields
from workbench.base.workspace import renamed, shown
from workbench.inspection.measured import Evaluation, Measured
from workbench.run.directory import RunDirectory
from workbench.run.held_out import completion_rows, write_completions
from workbench.run.turns import turns_of
from workbench.task import Row
from workbench.training.plan.loading import adapter_sum

FILE = "evaluation.parquet"
_ASIDE = "evaluation-{}.parquet"  # under settings that are not those of the last
Group = list[Fields]  # the completions of one prompt, each with its numbers


@dataclass
class Kept:
    # A run's evaluation.parquet: the rows of each prompt, by (who, how, the adapter's sum, the
    # prompt's row). Its metadata says under which `settings` they were measured, and which of them
    # were `asked` for last.
    run: RunDirectory
    settings: Fields
    asked: Fields = field(default_factory=dict)
    groups: dict[tuple[str, ...], Group] = field(default_factory=dict)

    @classmethod
    def open(cls, run: RunDirectory, settings: Fields | None = None) -> Kept:
        # Of other `settings` than the file's, which None stands for, nothing is kept.
        import pyarrow.parquet as pq

        files = [run.path / FILE]
        if settings is not None:
            files += sorted(run.path.glob(_ASIDE.format("*")))
        for file in files:
            # none yet, or a file of another kind
            with contextlib.suppress(OSError, KeyError, TypeError, ValueError):
                table = pq.read_table(file)
                kept = cls(run, **json.loads(table.schema.metadata[b"workbench"]))
                if settings in (None, kept.settings):
                    for row in table.to_pylist():
                        key = row["who"], row["how"], row["adapter"], row["row"]
                        kept.groups.setdefault(key, []).append(row)
                    return kept
        return cls(run, settings or {})

    @property
    def is_older(self) -> bool:
        # Whether the trained policy had another adapter than the run's current one.
        adapter = self.run._saved_adapter()
        current = self.asked and adapter and adapter_sum(adapter)
        return bool(current) and self.asked["adapters"]["trained"] != current

    def make_room(self) -> None:
        # Sets an evaluation under other settings aside, where `open` finds it again: a larger one
        # is not lost to a smaller.
        other = self.open(self.run)
        if not other.settings or other.settings == self.settings:
            return
        own = hashlib.sha256(json.dumps(other.settings, sort_keys=True).encode()).hexdigest()[:8]
        aside = self.run.path / _ASIDE.format(own)
        renamed(self.run.path / FILE, aside)
        prompts, samples = len(other.asked.get("rows", ())), other.settings.get("samples")
        print(
            f"measured before under other settings, {prompts} prompts x {samples} completions: kept"
            f" in {aside.name}, and read again when requested"
        )

    def key(self, who: str, how: str, row: str) -> tuple[str, ...]:
        return who, how, self.asked["adapters"][who], row

    def missing(
        self, who: str, how: str, rows: dict[str, Row], size: int
    ) -> Iterator[tuple[dict[str, Row], int]]:
        # Batches of the prompts that this policy has not answered yet, and how many are left then.
        keys = [key for key in rows if self.key(who, how, key) not in self.groups]
        for end in range(size, len(keys) + size, size):
            some = {key: rows[key] for key in keys[end - size : end]}
            yield some, max(0, len(keys) - end)

    def add(self, who: str, how: str, rows: dict[str, Row], groups: list[Group]) -> None:
        for (name, row), group in zip(rows.items(), groups, strict=True):
            key = self.key(who, how, name)
            about = dict(zip(("who", "how", "adapter", "row"), key))
            self.groups[key] = completion_rows(row, group, **about)
        self.save()

    def save(self) -> None:
        rows = [row for group in self.groups.values() for row in group]
        about = {"settings": self.settings, "asked": self.asked}
        write_completions(self.run.path / FILE, rows, about)

    def evaluation(self) -> Evaluation:
        try:
            return self._evaluation()
        except KeyError:
            raise RunError(
                f"{shown(self.run.path / FILE)}: not there, or not whole",
                rule="an evaluation is measured, then read",
                remedy=f"`workbench eval {self.run.name}` measures what is missing",
            ) from None

    def _evaluation(self) -> Evaluation:
        asked = self.asked

        def sampled(row: str, who: str = "base") -> Group:
            return self.groups[self.key(who, "sampled", row)]

        def told(row: str) -> bool:
            both = sampled(row) + sampled(row, "trained")
            return any(own["right"] is not None for own in both)

        keys = [*filter(told, asked["rows"])]
        keys = keys if len(keys) > 1 else asked["rows"]  # none: nothing was right
        rows = [
            {
                **json.loads(first["columns"]),
                "prompt": json.loads(first["prompt"]),
                "prompt_id": first["prompt_id"],
            }
            for first, *_ in map(sampled, keys)
        ]

        def of(who: str, how: str = "sampled") -> Measured:
            return measured_of([self.groups[self.key(who, how, row)] for row in keys], rows[0])

        before, after = of("base"), of("trained")
        steps = [int(who[11:]) for who in asked["adapters"] if who.startswith("checkpoint-")]
        curve = {step: of(f"checkpoint-{step}") for step in steps}
        if curve:
            curve = {0: before, **curve, asked["steps"]: after}
        greedy = (of("base", "greedy"), of("trained", "greedy")) if asked["greedy"] else None
        prompts = [row["prompt"] for row in rows]
        by, silent = self.settings["right_by"], len(asked["rows"]) - len(keys)
        return Evaluation(prompts, before, after, by, greedy, curve, rows, silent)


def measured_of(groups: list[Group], row: Row) -> Measured:
    def column(name: str) -> np.ndarray:
        return np.array([[completion[name] for completion in group] for group in groups])

    return Measured(
        [[completion["completion"] for completion in group] for group in groups],
        column("right").astype(bool),  # None, where nothing says so, is not
        None if groups[0][0]["format"] is None else column("format"),
        column("finished"),
        column("total"),
        parse_format(row).answer_tag or "answer",
        [[turns_of(own["turns"]) for own in group] for group in groups if group[0].get("turns")],
    )
