"""The run's health, checked while it trains: a watcher of the recorder like the live plot, and
called first.
"""

from __future__ import annotations

import contextlib
from typing import Any

from workbench.base.errors import RunError
from workbench.base.kinds import Fields
from workbench.base.printable import printable
from workbench.base.processes import is_main
from workbench.base.workspace import to_json
from workbench.health import ALARM, WARNING, RunConfig, Watchdog, examine_run
from workbench.health.diagnosis import LATEST
from workbench.health.summary import summaries_of
from workbench.rewards.library import max_score_of
from workbench.rewards.suite import RewardSuite
from workbench.run.directory import RunDirectory
from workbench.run.held_out import reward_errors, standing
from workbench.run.rollouts import qualified, unstated_right
from workbench.training.feature import Feature, Watched
from workbench.training.plan import Stage
from workbench.training.plan.settings.algorithms import asked_settings
from workbench.training.plan.settings.in_force import settings_in_force


class HealthWatch(Feature):
    """Keeps a `Watchdog` for the current stage. If it fails it is left out for the rest of the
    stage.
    """

    key = "watchdog"
    called, failed = "the health verdicts", "watchdog_failed"  # where it is left out

    def __init__(self, session: Watched) -> None:
        super().__init__(session)
        self.dog: Watchdog | None = None
        self.watch()

    def watch(self) -> None:
        """Receive everything before the other watchers."""
        watchers = self.session.recorder.watchers
        if self not in watchers:
            watchers.insert(0, self)

    @classmethod
    def of(cls, session: Watched) -> HealthWatch | None:
        return cls(session) if is_main() else None

    @classmethod
    def late_result(cls, run: RunDirectory) -> Fields:
        """What the last check would have found, for a run that was killed before it wrote its
        result.
        """
        verdicts = examine_run(run, last=LATEST)
        wrong = [to_json(each) for each in verdicts if each.state in (ALARM, WARNING)]
        return {"health": wrong, "reward_errors": reward_errors(run.events())}

    def begin_stage(self, stage: Stage) -> None:
        self.dog = Watchdog(self.config, self.session.measured)
        self.watch()  # it may have been left out in the stage before

    def config(self) -> RunConfig:
        """What the stage is now set to do."""
        control = self.session.control
        task, stage, suite = control.task, control.stage, control.suite
        best = dict(zip(suite.names, map(max_score_of, task.reward_funcs), strict=True))
        in_force = settings_in_force(self.session.trainer.args)
        return RunConfig.of(
            stage.settings | in_force,
            best=best,
            right_by=task.right_function,
            format_by=task.format_by,
            unstated_right="" if task.right_by else task.right_words,
            # whoever chose that; it comes with a gradient scaler
            fp16=self.session.trainer.args.fp16,
            asked=tuple(asked_settings(stage.recipe)),
            warm_start=self.session.run.warm_start.is_file(),
            environment=bool(getattr(self.session.trainer, "environment_factories", None)),
        )

    # -- as a watcher
    # ----------------------------------------------------------------------------------------------
    def begin(self, run: object, total_steps: int, settings: Fields) -> None:
        """Nothing: a stage has begun already."""

    def batch(self, scored: object, summary: Any) -> None:
        """Take in a batch; one that is scored before training begins does not count."""
        if self.dog is not None:
            self.dog.batch(summary)

    def update(self, step: int, values: Fields) -> None:
        """Take in a row of metrics, and check where it is due."""
        if self.dog is not None:
            self.dog.row(step, values)
            if self.dog.due():
                self.look(step)

    def end(self, message: str) -> None:
        """Nothing: the last check was `closing`'s."""

    def look(self, step: int) -> None:
        """Check the run's health; a new problem becomes an event, and an alarm is also printed."""
        recorder, dog = self.session.recorder, self.dog
        if dog is None:
            return
        for verdict in dog.look():
            recorder.event("health", step, **to_json(verdict))
            line = f"{verdict.state.upper()}: {verdict.line} -> {verdict.remedy}"
            print(printable(f"step {step}: {line}"), flush=True)
        recorder.tell("verdicts", dog.verdicts)

    # -- as a feature
    # ----------------------------------------------------------------------------------------------
    def reloaded(self, suite: RewardSuite) -> None:
        """Forget the batches seen: they say nothing about other functions."""
        if self.dog is not None:
            self.dog.forget()

    def resumed(self, step: int, begun: int) -> None:
        """Take in what the record holds of the stage, so that no alarm is raised twice."""
        if self.working:
            self.session.recorder.watching(self, lambda: self._fill(step, begun))

    def _fill(self, step: int, begun: int) -> None:
        run, dog = self.session.run, self.dog
        if dog is None:
            return
        changes = self.session.recorder.state.changes
        # what was before says nothing
        since = max([begun, *(event["step"] for event in changes if event["action"] == "reload")])
        events = [event for event in standing(run.events()) if event["event"] == "health"]
        told = {(event["name"], event["function"], event["state"]) for event in events}
        for summary in summaries_of(run, LATEST):
            if since < summary.step <= step:
                dog.batch(summary)
        for row in run.metrics():
            if row["step"] > begun:
                dog.row(row["step"], row)
        dog.look()
        dog.verdicts = [each for each in dog.verdicts if (*each.key, each.state) in told]

    def closing(self, step: int) -> None:
        """The last check."""
        if self.working:
            self.session.recorder.watching(self, lambda: self.look(step))

    @property
    def working(self) -> Watchdog | None:
        """What still checks; None: it was left out."""
        return self.dog if self in self.session.recorder.watchers else None

    def result(self, seconds: float) -> Fields:
        """The alarms and warnings of the last check."""
        return {"health": self.working.found() if self.working else []}

    def words(self, seconds: float) -> str:
        """Words on a run that cannot have learnt, on scores that functions failed to give, and on
        what the verdicts found.
        """
        text = nothing_learnt(self.session.recorder)
        if dog := self.working:
            text += words_of(dog, self.session.run.name)
        return text


def nothing_learnt(recorder: Any) -> str:
    """A few words where every group of a run was dead, or functions gave no score; else empty."""
    about: Fields = {}
    with contextlib.suppress(RunError):
        about = recorder.run.manifest()
    theirs = about.get("attached")
    why = "look at the rewards with `workbench probe`" if theirs else "look at the rewards in 02"
    if not (recorder.right or recorder.run.warm_start.is_file()):
        start = "begin with `warm_start: 32` in the recipe"
        if theirs or about.get("turns"):  # neither has a warm start
            start = "take easier prompts, or more completions of each"
        never = qualified("no completion was right", unstated_right(about))
        why = f"{never}: where `workbench probe` finds nothing wrong, {start}"
    text = ""
    if recorder.scored and recorder.all_dead:
        text = (
            ": NOTHING LEARNT, the completions of every group scored the same in every step"
            f" ({why})"
        )
    for name, count in recorder.reward_errors.items():
        text += f"; WARNING: {name} gave no score to {count} of {recorder.scored} completions"
    return text


def words_of(dog: Watchdog, name: str) -> str:
    """The verdicts in a line, and which requested settings did nothing; `name`: the run's."""
    idle = [name for each in dog.verdicts for name in each.evidence.get("inert_requested", ())]
    words = [dog.words]
    if idle:
        words.append(f"of the settings requested these did nothing: {', '.join(idle)}")
    told = "; ".join(filter(None, words))
    return f"; {told} (`workbench watch {name} --once` says more)" if told else ""
