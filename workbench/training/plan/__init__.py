"""A checked run: `Plan` and its `Stage`s. `prepare.py` makes them; everything else reads them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from workbench.base.kinds import Fields
from workbench.base.printable import printable
from workbench.base.workspace import to_json
from workbench.recipe import AdaptivePart, Recipe
from workbench.rewards.suite import RewardSuite
from workbench.task import Row as TaskRow
from workbench.task import Task
from workbench.training.plan.settings import Batch, batch_line
from workbench.training.plan.settings.device import Machine
from workbench.training.plan.settings.in_force import Row

ONLY_STAGE = "1"
# What is trained at a time: (recipe, settings, longest prompt in tokens or None).
Part = tuple[Recipe, Fields, int | None]
# (parts, machine, gradient checkpointing where that is decided already) -> (the same, lines to
# show, an estimate or None).
Memory = Callable[[Sequence[Part], Machine, bool | None], tuple[bool, list[str], Any]]


@dataclass(frozen=True)
class Stage:
    """A checked stage: all that its trainer is built from."""

    name: str
    number: int  # from 0
    recipe: Recipe  # the run's, with the stage's own settings and weights in it
    task: Task | None  # None: not known, and then there are neither rows nor a suite
    rows: list[TaskRow]
    settings: Fields
    planned: Batch
    suite: RewardSuite | None
    adaptive: dict[str, AdaptivePart]
    notes: list[str]
    source: str = ""  # the task file that a person edits; empty: none
    offset: int = 0  # steps of the stages before
    left_out_too_long: int = 0
    lengths_tokens: list[int] = field(default_factory=list)  # of the prompts that are used

    @property
    def steps(self) -> int:
        """Steps that the stage trains; -1 where epochs decide."""
        return self.settings["max_steps"]

    @property
    def scored_by(self) -> tuple[Task, RewardSuite]:
        """Its task and reward functions, which every stage that is trained has."""
        assert self.task is not None and self.suite is not None  # noqa: PT018  only a plan may lack them
        return self.task, self.suite

    @property
    def where(self) -> str:
        """How an error about the stage begins; empty: it is the only one."""
        return "" if self.name == ONLY_STAGE else f"stage {self.name!r}: "

    def fresh(self) -> Stage:
        """A copy of the stage with separate settings and reward functions: each trainer gets its
        own.
        """
        return replace(
            self,
            settings=dict(self.settings),
            suite=suite_of(self.scored_by[0], self.recipe, self.settings),
        )


def suite_of(task: Task, recipe: Recipe, settings: Fields) -> RewardSuite:
    """The task's reward functions as a stage with these settings weighs and aggregates them."""
    size, scale = settings["num_generations"], settings["scale_rewards"]
    aggregation = settings.get("multi_objective_aggregation", "sum_then_normalize")
    return RewardSuite(
        task, size, recipe.reward_weights, scale, aggregation, **recipe.rewards.model_dump()
    )


@dataclass(frozen=True)
class Plan:
    """A whole run: made by `prepare`, shown by `plan`, trained by `train`. It displays its table in
    a notebook cell.
    """

    recipe: Recipe  # under today's names
    task: Task | None  # None: it stands in for a script's, or its hub cannot be reached
    machine: Machine
    stages: tuple[Stage, ...]  # checked, with the prompts that fit
    settings: Fields  # what GRPOConfig is built from, in the first stage
    # everything that differs from the request, and what could not be checked
    notes: tuple[str, ...]
    generation: str  # who generates, as far as that can be told
    rows: tuple[Row, ...]  # requested, default, effective, and set by whom
    memory: Any = None  # an estimate, if one was asked for
    source: str = "recipe"
    # "task", "policy": not read from a script, so the workbench's own are named
    stand_ins: tuple[str, ...] = ()
    # its lines, if it was
    shown: list[str] = field(default_factory=list, compare=False, repr=False)

    HEADER = ("setting", "requested", "default", "effective", "set by")

    @property
    def batch(self) -> Batch:
        """The generation batch, in the first stage."""
        return self.stages[0].planned

    @property
    def words(self) -> str:
        """The batch arithmetic of each stage, with its current number of steps: `continue --steps`
        adds to them.
        """
        return ". ".join(
            stage.where + batch_line(stage.planned, stage.settings, len(stage.rows) or None)
            for stage in self.stages
        )

    @property
    def sentences(self) -> list[str]:
        """The words, and who generates; a `rollout_func` needs no such sentence."""
        return [f"{each}." for each in (self.words, self.generation) if each]

    @property
    def prompts(self) -> int | None:
        """How many different prompts are trained on; None: not known."""
        return len({row["prompt_id"] for stage in self.stages for row in stage.rows}) or None

    @property
    def longest_tokens(self) -> int | None:
        """The prompts' lengths; None: not measured."""
        lengths = [length for stage in self.stages for length in stage.lengths_tokens]
        return max(lengths, default=None)

    @property
    def cells(self) -> list[list[str]]:
        """Requested beside effective: one row per setting, under `HEADER`."""
        # None is a dash, and 1e-05 stays as it is: these are settings, not measurements.
        return [["-" if value is None else str(value) for value in row] for row in self.rows]

    def found(self) -> Fields:
        """For `--json`."""
        kept = ("source", "settings", "notes", "words", "generation", "prompts")
        content = {
            **{name: getattr(self, name) for name in kept},
            "recipe": self.recipe.model_dump(mode="json"),
            "in_force": self.rows,
            "longest_prompt_tokens": self.longest_tokens,
            "memory": self.memory.found() if hasattr(self.memory, "found") else self.memory,
        }
        return to_json(content)

    def __str__(self) -> str:
        self.shown[:] = [*self.notes, *self.sentences]
        policy = self.recipe.policy
        names = {"task": self.recipe.task, "policy": policy.name}
        task, name = (
            f"{part} unknown ({word} used instead)" if part in self.stand_ins else f"{part} {word}"
            for part, word in names.items()
        )
        bits = "4-bit" if policy.load_in_4bit else "16-bit"
        head = f"{self.source}: {task}, {name} through {policy.backend}, {bits}"
        table = [self.HEADER, *self.cells]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            f"{head}, {policy.max_seq_length} tokens, LoRA r {self.recipe.lora.r}",
            *self.sentences,
            *(f"  note: {note}" for note in self.notes),
            *([] if self.memory is None else [str(self.memory)]),
            "",
            *(printable("  ".join(map(str.ljust, row, widths)).rstrip()) for row in table),
        ]
        return "\n".join(lines)
