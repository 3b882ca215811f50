"""A run on display: picture, status in words, health, and one group of its latest step.

A `RunView` is fed by the trainer in memory (`LivePlot`, in the cell that trains); a `FollowedRun`
feeds itself from the run's files (`RunPanel`, `workbench watch`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from workbench.base.errors import RunError
from workbench.base.kinds import Fields
from workbench.base.progress import clock
from workbench.base.tail import Tail
from workbench.health.verdicts import Verdict
from workbench.run.batch import ScoredBatch
from workbench.run.control_file import RunState
from workbench.run.directory import RunDirectory
from workbench.run.held_out import held_out
from workbench.run.metrics import DEAD, GROUP_STD, KL, REWARD
from workbench.run.parts import parts, span
from workbench.run.record import fitted_lines
from workbench.run.rollouts import read_batches
from workbench.views.curves import RunFigure
from workbench.views.figure import image_bundle
from workbench.views.groups import ShownGroup, group_html, group_of
from workbench.views.health import health_view
from workbench.views.history import History, Mark, add_mark

OLDEST_S, OLDEST_SHARE = 10.0, 0.02
GAP = "   "  # between the parts of a status line
_NUMBERS = (
    ("reward", REWARD, ".2f"),
    ("group std", GROUP_STD, ".2f"),
    ("kl", KL, ".4f"),
    ("dead groups this step", DEAD, ".0%"),
)
_CONTINUE = "`workbench continue {name}` resumes from its latest checkpoint"
_ATTACHED = "only its own trainer's resume_from_checkpoint can resume it"
_AFTER = {
    "finished": "notebook 04 measures what training gained",
    "stopped": "{resume}",
    "aborted": "{resume}",
    "failed": "events.jsonl says why; {resume}",
    "killed": "its process is gone; {resume}",
    "gone": "nothing of it was kept",
}


def oldest_s(elapsed_s: float) -> float:
    """Maximum age of a picture at the end of a step, regardless of its cost, and of verdicts that
    are read from files: 10 s, or 2 % of the run if longer.
    """
    return max(OLDEST_S, OLDEST_SHARE * elapsed_s)


class RunView:
    """A run's curves, marks, verdicts and one group of its latest step, fed by its caller."""

    def __init__(self) -> None:
        self.figure = RunFigure()
        self.run: Any = None  # RunDirectory
        self.name = ""
        self.total = 0
        self.stages = False
        self.attached = False  # somebody else's trainer
        self.fresh = False  # something came since the last picture
        self.steered = False  # somebody changed something
        self._clear(RunState())

    def _clear(self, state: RunState) -> None:
        self.state = state
        self.history = History(state.weights)
        self.marks: list[Mark] = []
        self.paused_at = 0  # the step after which it was: its row of metrics comes later
        self.held_out: list[Fields] = []  # measurements of held-out prompts
        self.verdicts: list[Verdict] = []
        self.group: ShownGroup | None = None

    def begin(self, run: RunDirectory, total: int | None = None, beta: float | None = None) -> None:
        """Show this run. Its total steps and initial beta are the recipe's, unless given."""
        manifest = run.manifest()
        self.run = run
        self.name = self.figure.name = run.name
        self.stages = len(run.recipe().stages) > 1
        self.total = run.planned_steps if total is None else total
        self.attached = bool(manifest.get("attached"))
        self.figure.about(manifest)
        begun = RunState.begun(manifest)
        self._clear(begun if beta is None else replace(begun, beta=beta))

    def row(self, step: int, values: Mapping[str, object]) -> None:
        """Take note of one row of metrics."""
        self.history.add(step, values)
        self.fresh = True

    def event(self, event: Fields) -> None:
        """Take note of one event."""
        add_mark(self.marks, event)
        self.held_out = held_out([*self.held_out, event])
        self.state.apply(event)
        self.fresh = True
        if event.get("event") == "control" and event.get("applied"):
            self.steered |= event.get("by") != "adaptive"
            if event.get("action") == "pause":
                self.paused_at = event.get("step") or 0

    def show_group(self, batch: ScoredBatch) -> None:
        """Show one group of a batch: another one of each step."""
        if batch.group_count and self._shows_other(batch.step):
            self.group = group_of(batch, batch.step)

    def _shows_other(self, step: int) -> bool:
        return self.group is None or self.group.batch.step != step

    # -- shown
    # ----------------------------------------------------------------------------------------------
    def words(self, elapsed_s: float | None, message: str | None = None) -> str:
        """The status line: where the run is (or how it ended), its numbers, and the time left by
        its latest steps.
        """
        paused = self.state.paused
        where = f"paused after {self._place()}" if paused else self._place()
        if self.stages and self.state.stage:
            where += f" (stage {self.state.stage})"
        parts = [f"{self.name}: {message or where}"]
        for label, key, form in _NUMBERS:
            if (value := self.history.last(key)) is not None or key != DEAD:
                parts.append(f"{label} {'not measured' if value is None else format(value, form)}")
        if self.held_out:
            base, newest = (f"{self.held_out[place]['correct']:.0%}" for place in (0, -1))
            only = len(self.held_out) == 1
            parts.append(f"held-out base {base}" if only else f"held-out {newest} (base {base})")
        if elapsed_s is not None:
            parts.append(f"took {clock(elapsed_s)}" if message else f"{clock(elapsed_s)} elapsed")
        if not message and not paused and (left := self.left_s(elapsed_s)):
            parts.append(f"about {clock(left)} left")
        return GAP.join(parts)

    def _place(self) -> str:
        step = max(self.history.step, self.paused_at * self.state.paused)
        return f"step {step}" + (f" of {self.total}" if self.total > 0 else "")

    def left_s(self, elapsed_s: float | None = None) -> float | None:
        """Seconds until the planned steps are done, predicted from the latest steps (or the mean of
        all); None: not known.
        """
        step, step_s = self.history.step, self.history.recent_step_s()
        if not step or not self.total:
            return None
        if step_s is None and elapsed_s is not None:
            step_s = elapsed_s / step
        return None if step_s is None else step_s * max(0, self.total - step)

    def picture(self, heading: str = "", sharp: bool = False) -> tuple[bytes, str]:
        """(the figure as PNG bytes, its title): a status line, for a picture that stands alone, or
        the step that it shows. `sharp`: one that stays.
        """
        self.fresh = self.steered = False
        self.figure.beta = self.state.beta or 0.0
        title, _, note = (heading or f"{self.name}, {self._place()}").partition(GAP)
        known = self.marks, self.held_out, self.verdicts, sharp
        drawn = self.figure.draw(self.history, title, note, *known)
        return drawn, title if heading else f"{self.name}: picture of {self._place()}"

    def below(self) -> str:
        """HTML of what stands under the picture: the verdicts on the run's health, and the latest
        group.
        """
        verdicts = health_view(self.verdicts)._repr_html_() if self.verdicts else ""
        return verdicts + (group_html(self.group) if self.group is not None else "")


class FollowedRun(RunView):
    """A run that trains elsewhere (or has ended), as far as its files tell; `look` updates it.

    `run` is a run, or what `start` returned, whose run comes later. `status` is "loading" (there is
    no run yet), "running", or how it ended: "finished", "stopped", "aborted", "failed", "killed",
    "gone" if nothing of it was kept, or "not begun" if its process ended before there was a run.
    """

    def __init__(self, run: RunDirectory | Any) -> None:
        super().__init__()
        self.started: Any = None if isinstance(run, RunDirectory) else run
        self.status = "loading"
        self._since = time.monotonic()
        self._begun: float | None = None  # time.time() at which the session began
        self._unexamined = False  # something was read since the run's health was looked at
        self._examined_at = float("-inf")
        self._summaries: dict[Any, Any] = {}  # of the parts that were examined before
        if self.started is None:
            self._open(run)
        self.look()

    def _open(self, run: RunDirectory) -> None:
        self.begin(run)
        self._metrics = Tail(run.path / "metrics.jsonl")
        self._events = Tail(run.path / "events.jsonl")

    @property
    def over(self) -> bool:
        """Whether there is nothing left to follow."""
        return self.status not in ("loading", "running")

    def look(self) -> list[Fields]:
        """Read what was written since the last look; returns the new events."""
        if self.run is None:
            # The process may end before there is a run: a policy that cannot be loaded, a recipe
            # that cannot be right. It is asked first, so that a run that was begun and ended in
            # between is not missed.
            code = self.started.poll()
            if self.started.run is None:
                self.status = "loading" if code is None else "not begun"
                return []
            self._open(self.started.run)
        live = self.run.live  # first: what it wrote before it ended is then read for certain
        rows = [*fitted_lines("metrics.jsonl", self._metrics.take())]
        events = [*fitted_lines("events.jsonl", self._events.take())]
        if self._metrics.rewritten:  # the run was continued
            self.history = History(self.state.weights)
        for row in rows:
            self.row(row["step"], row)
        for event in events:
            self.event(event)
            if event.get("event") in ("started", "continued"):
                with contextlib.suppress(ValueError):
                    self._begun = datetime.fromisoformat(str(event.get("time"))).timestamp()
            elif event.get("event") == "health" and event.get("state") == "alarm":
                self._examined_at = float("-inf")  # the trainer has found one: it is shown at once
        self._unexamined |= bool(rows or events)
        self.status = "running" if live else self._ended()
        return events

    def _ended(self) -> str:
        if not (self.run.path / "recipe.yaml").is_file():
            return "gone"
        try:
            return self.run.result()["status"]
        except (OSError, ValueError, RuntimeError):
            return "killed"

    def read_group(self) -> None:
        """Read a group of the newest step, if another one is due."""
        if self.run is None or self.status == "gone":
            return
        # There may be no folder yet, or nothing in it; or a part that is not whole yet.
        with contextlib.suppress(RunError, OSError):
            _, newest, _ = span(parts(self.run.rollouts)[-1])
            if self._shows_other(newest):
                for batch in [*read_batches(self.run, [newest])][-1:]:
                    self.show_group(batch)

    def time_to_examine(self) -> bool:
        """Whether there is something new to examine, and the verdicts are older than `oldest_s`."""
        if not len(self.history) or not self._unexamined:
            return False
        age = time.monotonic() - self._examined_at
        return self.over or age >= oldest_s(self.elapsed_s() or 0.0)

    def examine(self) -> list[Verdict]:
        """The verdicts on the run's health, from its record. Reads files only, so it may run on
        another thread.
        """
        from workbench.health import examine_run

        self._unexamined = False
        # A part that is being written, a run that is taken away: the next look may find it whole.
        with contextlib.suppress(Exception):
            self.verdicts = list(examine_run(self.run, last=200, known=self._summaries))
        self._examined_at = time.monotonic()
        return self.verdicts

    def elapsed_s(self) -> float | None:
        """Seconds since the run (or its latest session) began; of a run that is over, what it
        took.
        """
        if self.over and self.status not in ("gone", "not begun"):
            return 60 * (self.run.result().get("minutes") or 0.0)
        return max(0.0, time.time() - self._begun) if self._begun is not None else None

    def message(self) -> str | None:
        """How the run ended, and what to do next; None while it trains."""
        if not self.over or self.run is None:
            return None
        how = f"{self.status} after {self.history.step} step{'s' * (self.history.step != 1)}"
        if self.status == "gone":
            how = "ended before its first step"
        resume = _ATTACHED if self.attached else _CONTINUE.format(name=self.name)
        return f"{how}; {_AFTER.get(self.status, '').format(resume=resume)}"

    def line(self) -> str:
        """The status line; while there is no run, the last output of its process."""
        error = self.started.error if self.started is not None else ""
        if self.status == "not begun":
            error = error or self.started.log_tail().strip()
            return f"the process ended before the run began\n{error}"
        if self.run is None:
            printed = self.started.log_tail().split("\n")
            loading = f"loading the policy ... {clock(time.monotonic() - self._since)}"
            return "\n".join([loading, *[line.strip() for line in printed if line.strip()][-1:]])
        if not len(self.history) and not self.over:
            return f"{self.name}: waiting for the first step"
        line = self.words(self.elapsed_s(), self.message())
        failed = error and self.status in ("failed", "killed", "gone")
        return f"{line}\n{error}" if failed else line


class RunCurves:
    """A run's curves, as a picture: leave it as the last line of a cell."""

    def __init__(self, run: RunDirectory) -> None:
        self.view = FollowedRun(run)

    def __repr__(self) -> str:
        return f"{self.view.name}: {len(self.view.history)} steps"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        self.view.examine()
        picture = self.view.picture(repr(self), sharp=True)
        return image_bundle(self.view.figure.figure, *picture)
