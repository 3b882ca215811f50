"""Experiment trackers beside the run's own files: TensorBoard, Trackio, Weights & Biases, MLflow,
and any other that transformers has a callback for.

Each writes where it always does, as its environment says; TensorBoard, where that says nothing, to
`runs/<run_name>/trackers`. The run directory is the record, and it is complete without them; so a
tracker may fail at any moment: its first error is reported and removes it. One that hangs holds the
run up, as it would hold up any trainer.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

from workbench.base import processes
from workbench.base.kinds import Fields
from workbench.training.feature import Asked, Feature, Planned
from workbench.training.plan.settings.values import check_trackers

PROJECT = "grpo-workbench"


class Trackers(Feature):
    """The trackers of a run's `report_to`, by transformers' own callbacks: they see what the record
    holds, and one run, in however many stages; the main process reports.

    Build GRPOConfig with `report_to="none"`: TRL would add them before the spine, and send its
    table of completions.
    """

    key = "trackers"
    of_recipe = True

    def __init__(self, session: Any) -> None:
        from transformers.integrations import integration_utils as theirs

        super().__init__(session)
        self.last: Fields = {}  # what the latest event was told, but for its logs
        self.working: Fields = {}  # name -> its callback
        asked = check_trackers(session.stages[0].settings["report_to"])
        if asked == ["all"]:
            asked = theirs.get_available_reporting_integrations()
        for name in asked if processes.is_main() else ():
            [kind] = theirs.get_reporting_integration_callbacks(name)
            if tracker := self._guarded(name, "start", kind):
                self.working[name] = tracker
                if vars(tracker).get("logging_dir", "") is None:  # else among the checkpoints
                    tracker.logging_dir = str(session.run.path / "trackers")

    @classmethod
    def plan(cls, asked: Asked) -> Planned:
        for stage in asked.stages:
            check_trackers(stage.settings["report_to"])
        return Planned()

    def __getattr__(self, event: str) -> Callable[..., None]:
        if not event.startswith("on_"):
            raise AttributeError(event)
        return functools.partial(self._forward, event)

    def _forward(
        self, event: str, args: Any, state: object, control: object, logs: Any = None, **more: Any
    ) -> None:
        # A stage's begin and end are not the run's.
        if event == "on_train_end" or (event == "on_train_begin" and self.last):
            return
        args.run_name, args.project = self.session.run.name, PROJECT
        # A copy of control: to watch a run is not to steer it.
        own = {"args": args, "state": state, "control": copy.copy(control)}
        self.last = own | {key: more.get(key) for key in ("model", "processing_class")}
        if logs is not None:
            # A function that scored nothing logs None, which is no number to any of them.
            more["logs"] = {key: value for key, value in logs.items() if value is not None}
        self._tell(event, own | more)

    def _tell(self, event: str, own: Fields) -> None:
        for name, tracker in [*self.working.items()]:
            self._guarded(name, event, functools.partial(getattr(tracker, event), **own))

    def _guarded(self, name: str, when: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (Exception, SystemExit) as error:
            self.working.pop(name, None)
            said = f"{when}: {type(error).__name__}: {error}".partition("\n")[0]
            self.session.run.log_event("tracker_failed", tracker=name, error=said)
            print(f"{name} failed and is left out, training continues: {said}", flush=True)

    def close(self) -> None:
        if self.last:
            self._tell("on_train_end", self.last)
        wandb = getattr(self.working.get("wandb"), "_wandb", None)
        if wandb and wandb.run and wandb.run.name == self.session.run.name:
            # transformers leaves it open, and the next run in this process would be logged into it
            self._guarded("wandb", "end", wandb.finish)
        self.working, self.last = {}, {}
