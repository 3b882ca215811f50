"""`Feature`: something added around a run, in `features/` or by an instrument. The spine calls its
hooks and knows none by name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from workbench.base.kinds import Fields, Function, Trainer
from workbench.recipe import Recipe
from workbench.rewards.suite import RewardSuite
from workbench.run.batch import ScoredBatch
from workbench.run.directory import RunDirectory
from workbench.task import Task
from workbench.training.plan import Memory, Stage
from workbench.training.plan.settings.device import Machine

if TYPE_CHECKING:
    from workbench.training.policy import Policy
    from workbench.training.resuming import Point


class Asked(NamedTuple):
    """What is known of a run before it is trained."""

    recipe: Recipe  # of the whole run
    task: Task | None = None  # the recipe's
    stages: Sequence[Stage] = ()  # empty: the task is not loaded yet
    steps: int = -1  # of the whole run; below 1 where epochs decide
    run: RunDirectory | None = None  # the one that is resumed
    policy: Policy | None = None  # if it is loaded
    estimates: bool = False  # whether the plan estimates memory
    vram_gb: float | None = None  # of another card than this machine's


class Planned(NamedTuple):
    """What a feature makes of a planned run."""

    lines: Sequence[str] = ()  # for the plan
    changes: Recipe | None = None  # the recipe with what it left to be found out
    memory: Memory | None = None  # decides on gradient checkpointing, and estimates


class Watched(Protocol):
    """What features use of a session: `Session` of the spine has it, `StagedSession` all of it."""

    run: RunDirectory
    trainer: Any  # of the current stage
    policy: Any  # None: a trainer of the user's own
    plan: Any  # the `Plan` that it trains, where there is a policy
    stages: Sequence[Stage]
    stage: Stage  # the current one
    point: Point | None  # where it was resumed
    begun_at: int  # the step before the first
    trained_before: bool  # before the first step, as by a warm start
    measured: Sequence[Fields]  # of held-out prompts, so far
    recorder: Any
    control: Any  # of the run: its stage, task and rewards as they are now, and whether it stops
    restored: Any  # from the checkpoint, in the stage that is resumed
    at_end: ExitStack
    replace: Function  # (name, value): a method of the trainer, until the session is over
    spared: Function  # inside, what fails must not end somebody's own training
    save_before_first: Function  # a checkpoint of step 0


class Feature:
    """Something added around a run; every hook is optional.

    The class is asked before there is a run; an object is made for each run when its trainer is
    attached. It may also have the events of transformers' `TrainerCallback`, such as
    `on_step_end(args, state, control, **more)`: they come after the spine's own and before requests
    are answered. `state.global_step` counts the steps of the run. `key`: its name in the record.
    """

    key = ""
    of_recipe = False  # only for policies that the workbench loaded

    def __init__(self, session: Watched) -> None:
        self.session = session

    # -- before a run
    # ----------------------------------------------------------------------------------------------
    @classmethod
    def plan(cls, asked: Asked) -> Planned:
        """What it makes of a run; RecipeError for settings that the run, or a stage, cannot have.

        Asked twice: before the task is loaded, without stages, when it may change the recipe; and
        once the stages' settings are checked, before their rewards are tried.
        """
        return Planned()

    @classmethod
    def generates(cls, stage: Stage, machine: Machine, shape: Any) -> str | None:
        """Who samples a stage's completions, in a line for the plan; None: nothing to say. `shape`:
        None where not known.
        """
        return None

    @classmethod
    def resumes(cls, recipe: Recipe, point: Point, manifest: Fields) -> list[str]:
        """Lines to print where a run is resumed from `point`."""
        return []

    @classmethod
    def late_result(cls, run: RunDirectory) -> Fields:
        """The same as `result`, from the record of a run that was killed before it wrote one."""
        return {}

    @classmethod
    def of(cls, session: Watched) -> Feature | None:
        """The feature for this session's run; None: the run does not use it. The trainer is not
        touched yet.
        """
        return cls(session) if session.policy or not cls.of_recipe else None

    # -- while it trains
    # ----------------------------------------------------------------------------------------------
    def begin_stage(self, stage: Stage) -> None:
        """The trainer of this stage exists (`session.trainer`), and nothing is attached to it
        yet.
        """

    def around(self, trainer: Trainer) -> dict[str, Function]:
        """By name, the trainer's methods to replace, each registered with `@replaces`; they are put
        back at the end.
        """
        return {}

    def before_first(self, stage: Stage) -> bool:
        """Before the stage's trainer trains: whether it may start."""
        return True

    def training(self) -> AbstractContextManager[object]:
        """Entered while the stage's trainer trains."""
        return contextlib.nullcontext()

    def started(self) -> Fields:
        """Details for the event that training has begun, or was resumed."""
        return {}

    def on_batch(self, scored: ScoredBatch) -> ScoredBatch | None:
        """A generation batch was scored; it is not recorded yet. Returns one to record in its
        place, or None.
        """

    def row(self) -> dict[str, float]:
        """Numbers for the row of metrics that is being written, by name."""
        return {}

    def changes(self, weights: dict[str, float]) -> list[Fields]:
        """Once a step: weights to change, each as a request for `weight` (`function`, `value`,
        `why`).
        """
        return []

    def reloaded(self, suite: RewardSuite) -> None:
        """The reward functions were loaded again, as `suite`."""

    def explained(self, error: Exception) -> Exception:
        """The error to raise where training failed with `error`: a more informative one, or the
        same.
        """
        return error

    # -- over a resume, and at the end
    # -----------------------------------------------------------------------------------
    def state(self) -> Fields:
        """What a checkpoint's state.json keeps of it, as JSON, under its `key`.

        A run of the workbench's own keeps it, and a checkpoint is saved after `on_step_end`; with
        `attach` on somebody else's trainer nothing is kept, hence `of_recipe`.
        """
        return {}

    def restore(self, state: Fields) -> None:
        """Restore from a checkpoint's whole state.json; one from before the feature was there lacks
        its key.

        Called in the stage of that checkpoint alone, before its training, and after `begin_stage`.
        A resume from an older checkpoint goes back behind what happened since: what must happen
        once in the whole run is an event of the record, which `resumed` can read.
        """

    def resumed(self, step: int, begun: int) -> None:
        """The run was resumed after `step`, in a stage that began after step `begun`; its record
        has been read.
        """

    def closing(self, step: int) -> None:
        """The run is over after `step` steps; its last line and its result come next."""

    def words(self, seconds: float) -> str:
        """For the run's closing line, starting with its punctuation; empty: nothing. `seconds`: of
        the whole run.
        """
        return ""

    def result(self, seconds: float) -> Fields:
        """For the `result` in the manifest; `seconds`: of the whole run."""
        return {}

    def close(self) -> None:
        """The run is over, however it ended."""
