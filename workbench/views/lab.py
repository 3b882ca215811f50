"""The lab: a group of completions that are scored while one types, beside what cheats earn.

`Lab(task)` in a notebook shows the panel; where there are no widgets (a terminal, a saved page) it shows the same as
tables. A task that came from a file is loaded again whenever the file is saved. What a completion says is only ever
shown as text: escaped, in `<pre>`.

Everything runs between cells, on the kernel's own event loop: no thread touches a widget, so it works where widgets may
not be touched from threads. While a cell runs, the panel waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from workbench.audit.examination import RewardAudit, audit_rewards, writers
from workbench.audit.probes import probes_by
from workbench.audit.prompt_format import parse_format
from workbench.audit.reference_completion import CompletionBuilder
from workbench.errors import RecipeError, TaskError, WorkbenchError
from workbench.rewards.groups import ExplainedGroup, batch_of, explain
from workbench.rewards.suite import RewardSuite
from workbench.task import Row, Task, load_task
from workbench.views.audit import Report
from workbench.views.controls import WIDGETS, widget_view
from workbench.views.groups import group_tables
from workbench.views.highlight import highlighted
from workbench.views.tables import PRE, Table, plain, short_name
from workbench.workspace import shown

MOST_PROMPTS = 100  # offered in the list
_LOOK_S = 0.5  # between two looks at the task file
_PAUSE_S = 0.15  # of typing, after which it is scored
_STARTERS = ("an honest answer", "a wrong answer", "empty tags", "several answers as a hedge", "empty")
_DEADLINE_S = 5.0  # for one function and all completions of the panel
_SCALES = ("group", "batch", "none")
_OPEN: dict[str, Lab] = {}  # the panel that looks after each task file: run again, a cell replaces it


class Bench:
    """A task, one of its prompts, and a group of completions: what the panel shows, without the panel.

    Args:
        task: a `Task`, a task file, or the name of a task that ships.
        scale_rewards: TRL's setting, for the advantages.
    """

    def __init__(self, task: Task | str | Path, scale_rewards: str = "group") -> None:
        self.scale_rewards = scale_rewards
        self.task = task if isinstance(task, Task) else load_task(task)
        self.file = Path(self.task.source) if self.task.source else None
        self.problem = ""  # why the file as it is now cannot be used
        self._stamp = self._look()
        self._suite: RewardSuite | None = None
        self._examination: RewardAudit | None = None
        self._writers: dict[int, CompletionBuilder] = {}

    def _look(self) -> tuple[int, int] | None:
        try:
            found = self.file.stat() if self.file is not None else None
        except OSError:
            return None
        return (found.st_mtime_ns, found.st_size) if found is not None else None

    def reload_if_saved(self) -> bool:
        """Load the task file anew if it changed; the last good task stays while it cannot be. True if anything is new."""
        stamp = self._look()
        if stamp is None or stamp == self._stamp:
            return False
        self._stamp = stamp
        before = self.task, self._suite, self._examination, self._writers
        try:
            self.task, self._suite, self._examination, self._writers = load_task(self.file), None, None, {}
            self._usable()
        except (Exception, SystemExit) as error:  # whatever is written there, the panel stays
            self.task, self._suite, self._examination, self._writers = before
            self.problem = str(error) if isinstance(error, WorkbenchError) else f"{type(error).__name__}: {error}"
            return True
        if before[1] is not None:
            before[1].close()
        self.problem = ""
        return True

    def _usable(self) -> None:
        if not len(self.task.rows):
            raise TaskError(
                f"task {self.task.name!r}: 0 prompts", rule="completions answer a prompt", remedy="give the task rows"
            )
        self.writer(0)
        self.suite.check_signatures(self.task.rows)

    @property
    def suite(self) -> RewardSuite:
        """The task's functions; one that fails leaves its completion without a score."""
        if self._suite is None:
            self._suite = RewardSuite(self.task, 1, deadline_s=_DEADLINE_S, on_error="skip", keep_state=False)
        return self._suite

    @property
    def examination(self) -> RewardAudit:
        """What `audit_rewards` says of the task as it is now."""
        if self._examination is None:
            self._examination = audit_rewards(self.task)
        return self._examination

    def close(self) -> None:
        """End the functions' worker process."""
        if self._suite is not None:
            self._suite.close()

    def writer(self, number: int) -> CompletionBuilder:
        """How an honest policy writes for a prompt of the task."""
        if number not in self._writers:
            rows = self.task.rows
            near = [rows[other] for other in range(min(len(rows), 20)) if other != number]
            self._writers[number] = writers(self.task, [rows[number], *near])[0]
        return self._writers[number]

    def starters(self, number: int) -> dict[str, str]:
        """Completions to begin with, by name: the honest ones, then the cheats."""
        writer = self.writer(number)
        honest = writer.reference_completions()
        found = {"an honest answer": honest[0].text}
        found.update({f"honest, {ideal.name}": ideal.text for ideal in honest[1:]})
        found.update({probe.name: probe.text for probe in probes_by(writer, self.task.probes)})
        return found

    def group(self, row: Row, texts: Sequence[str]) -> tuple[ExplainedGroup, dict[int, list[str]]]:
        """(the completions as one group, by completion what functions did instead of scoring it)."""
        texts = list(texts) or [""]  # nothing written yet
        scored = self.suite.score_each([row] * len(texts), texts, quiet=True)
        scores = np.array([scored[name].scores for name in self.suite.names], dtype=float).T
        right = [score > 0 for score in scored[self.task.right_function].scores]
        problems: dict[int, list[str]] = {}
        for name, each in scored.items():
            for index, what in each.errors.items():
                problems.setdefault(index, []).append(f"{name} {what}")
        found = batch_of(self.suite.names, self.suite.weights, scores, texts, right, len(texts), self.scale_rewards)
        return explain(found), problems

    def matched(self, row: Row, text: str, function: str | None = None) -> set[tuple[int, int]]:
        """(start, end) of what the functions (or one) took out of a completion."""
        found: set[tuple[int, int]] = set()
        for name in self.suite.names if function is None else [function]:
            trace = self.suite.trace(name, [row], [text])
            if trace is not None:
                found |= trace.matched.get(text, set())
        return found

    def tables(self, row: Row, texts: Sequence[str]) -> list[Any]:
        """The panel as plain tables."""
        found, problems = self.group(row, texts)
        parts: list[Any] = [*group_tables(found)]
        if problems:
            rows = [[index, what] for index, each in sorted(problems.items()) for what in each]
            parts.append(Table(["completion", "what a function did instead of scoring it"], rows))
        return [*parts, self.report()]

    def report(self) -> Any:
        """The examination for people, or why there is none."""
        try:
            return Report(self.examination)
        except WorkbenchError as error:
            return Table(["the task cannot be examined"], [[str(error)]])


class Lab:
    """The panel. Show it by leaving it as the last line of a cell.

    Args:
        task: a `Task`, a task file, or the name of a task that ships.
        completions: texts to begin with; None: an honest answer and three cheats.
        row: number of the prompt to begin with.
    """

    def __init__(
        self,
        task: Task | str | Path,
        completions: Sequence[str] | None = None,
        row: int = 0,
        scale_rewards: str | bool = "group",
    ) -> None:
        scale = {True: "group", False: "none"}.get(scale_rewards, scale_rewards)
        if scale not in _SCALES:
            raise RecipeError(
                f"scale_rewards = {scale_rewards!r}", rule="TRL's setting", remedy=f"one of {', '.join(_SCALES)}"
            )
        given = [completions] if isinstance(completions, str) else completions
        if given is not None and not all(isinstance(text, str) for text in given):
            raise TaskError(
                f"completions = {given!r:.200}", rule="a completion is a text", remedy="give a list of texts"
            )
        self.bench = Bench(task, scale)
        self.bench._usable()
        rows = self.bench.task.rows
        if not 0 <= row < len(rows):
            raise IndexError(f"row = {row}: the task has {len(rows)} rows")
        self.number = row
        starters = self.bench.starters(row)
        self.texts = (
            list(given) if given is not None else [starters[name] for name in _STARTERS if name in starters][:4]
        )
        self._unseen: list[str] = []  # functions that paid for something, and nothing shows for what
        self._pending: Any = None
        self._watching: asyncio.Task | None = None
        self.widget = self._build()

    @property
    def row(self) -> Row:
        """The prompt that is shown, as the task's row."""
        return self.bench.task.rows[self.number]

    def tables(self) -> list[Any]:
        """The same without widgets."""
        return self.bench.tables(self.row, self.texts)

    def __repr__(self) -> str:
        return "\n\n".join([plain(_question(self.row)), *map(str, self.tables())])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        # The tables go along for readers of the saved notebook, where no kernel answers the widgets.
        *parts, report = self.tables()
        question = f"<pre style='{PRE}'>{html.escape(_question(self.row))}</pre>"
        static = "".join([question, *(part._repr_html_() for part in parts), self._fold(report)])
        bundle = {"text/html": static, "text/plain": repr(self)}
        if self.widget is None:
            return bundle
        self._watch()
        return {**bundle, **widget_view(self.widget)}

    @staticmethod
    def _fold(report: Any) -> str:
        # Opened by a click, so that nobody reads a flaw before having looked for it.
        return f"<details><summary>what the examination says of these rewards</summary>{report._repr_html_()}</details>"

    def close(self) -> None:
        """Stop looking after the task file, and end the functions' process."""
        if self._watching is not None:
            self._watching.cancel()
        self.bench.close()
        if self.widget is not None:
            self.widget.close()

    # --- widgets ------------------------------------------------------------------------------------------------

    def _build(self) -> Any:
        if os.environ.get(WIDGETS) == "0":
            return None
        try:
            import ipywidgets
        except ImportError:
            return None
        self._kit = ipywidgets
        wide, half, words = (
            ipywidgets.Layout(width="98%"),
            ipywidgets.Layout(width="40%"),
            {"description_width": "initial"},
        )
        self._prompts = ipywidgets.Dropdown(
            options=self._offered(), value=self.number, description="prompt", layout=ipywidgets.Layout(width="70%")
        )
        self._scale = ipywidgets.Dropdown(
            options=list(_SCALES), value=self.bench.scale_rewards, description="scale_rewards", style=words
        )
        self._marks = ipywidgets.Dropdown(
            options=self._markable(), value="", description="highlight", style=words, layout=half
        )
        self._prompt, self._status = ipywidgets.HTML(layout=wide), ipywidgets.HTML(layout=wide)
        self._verdict, self._scores = ipywidgets.HTML(layout=wide), ipywidgets.HTML(layout=wide)
        self._report = ipywidgets.HTML(layout=wide)
        self._boxes = ipywidgets.VBox([], layout=wide)
        self._cells: list[tuple[Any, Any]] = []
        self._prompts.observe(self._prompt_changed, "value")
        self._scale.observe(self._scale_changed, "value")
        self._marks.observe(lambda _: self._soon(), "value")
        self._fill()
        self.refresh(everything=True)
        return ipywidgets.VBox(
            [
                ipywidgets.HBox([self._prompts]),
                self._prompt,
                self._status,
                self._boxes,
                ipywidgets.HBox([self._scale, self._marks]),
                self._verdict,
                self._scores,
                self._report,
            ]
        )

    def _offered(self) -> list[tuple[str, int]]:
        rows = self.bench.task.rows
        numbers = sorted({*range(min(len(rows), MOST_PROMPTS)), self.number})
        return [(f"{number}: {_question(rows[number])[:80]}", number) for number in numbers]

    def _markable(self) -> list[tuple[str, str]]:
        return [("what any function matched", ""), *((name, name) for name in self.bench.suite.names)]

    def _fill(self) -> None:
        # One line a completion: what is typed, and what is found in it.
        kit = self._kit
        starters = self.bench.starters(self.number)
        self._cells, lines = [], []
        for index, text in enumerate(self.texts):
            chooser = kit.Dropdown(
                options=[("(choose a completion)", ""), *((name, name) for name in starters)],
                description=str(index),
                style={"description_width": "1.5em"},
                layout=kit.Layout(width="98%"),
            )
            area = kit.Textarea(
                value=text, rows=6, placeholder="type a completion", layout=kit.Layout(width="98%", height="9em")
            )
            area.add_class(f"workbench-completion-{index}")
            seen = kit.HTML(layout=kit.Layout(width="50%"))
            seen.add_class(f"workbench-seen-{index}")
            area.observe(lambda change, index=index: self._typed(index, change["new"]), "value")
            chooser.observe(lambda change, area=area, starters=starters: _put(area, starters, change["new"]), "value")
            self._cells.append((area, seen))
            lines.append(kit.HBox([kit.VBox([chooser, area], layout=kit.Layout(width="50%")), seen]))
        add = kit.Button(description="one more completion", layout=kit.Layout(width="auto", align_self="flex-start"))
        add.on_click(lambda _: self._add())
        self._boxes.children = [*lines, add]

    def _add(self) -> None:
        self.texts.append("")
        self._fill()
        self.refresh()

    def _typed(self, index: int, text: str) -> None:
        self.texts[index] = text
        self._soon()

    def _prompt_changed(self, change: dict[str, Any]) -> None:
        # Completions that were not touched follow the prompt; what was typed stays.
        before = {text: name for name, text in self.bench.starters(self.number).items()}
        self.number = change["new"]
        after = self.bench.starters(self.number)
        self.texts = [after.get(before.get(text, ""), text) for text in self.texts]
        self._fill()
        self.refresh(everything=True)

    def _scale_changed(self, change: dict[str, Any]) -> None:
        self.bench.scale_rewards = change["new"]
        self.refresh()

    def _soon(self) -> None:
        # Once the typing pauses, so that a slow function is not asked for every letter.
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.refresh()
            return
        if self._pending is not None:
            self._pending.cancel()
        self._pending = loop.call_later(_PAUSE_S, self.refresh)

    def refresh(self, everything: bool = False) -> None:
        """Score what stands in the boxes.

        Args:
            everything: the prompt and the cheats too.
        """
        try:
            self._show(everything)
        except Exception as error:  # whatever a task's functions do, the panel stays usable
            self._verdict.value = _said(f"{type(error).__name__}: {error}", "#c0392b")

    def _show(self, everything: bool) -> None:
        row, started = self.row, time.perf_counter()
        asked = parse_format(row)
        marks = [mark for block in asked.blocks for mark in (block.opening, block.closing)]
        if everything:
            writer = self.bench.writer(self.number)
            answer = writer.answer if writer.has_answer else ""
            self._prompt.value = f"<pre style='{PRE}'>{html.escape(plain(_prompt_text(row)))}</pre>" + (
                f"<pre style='{PRE}'><b>right answer</b> {html.escape(plain(answer))}</pre>" if answer else ""
            )
        if self.texts:
            found, problems = self.bench.group(row, self.texts)
            unseen = {}
            for index, (_, seen) in enumerate(self._cells):
                matched = set()
                for number, name in enumerate(self.bench.suite.names):
                    if self._marks.value in ("", name):
                        own = self.bench.matched(row, self.texts[index], name)
                        matched |= own
                        if not own and found.scores[index, number] > 0:
                            unseen[name] = short_name(name)
                seen.value = _one(found, index, highlighted(self.texts[index], matched, marks), problems.get(index, []))
            self._unseen = list(unseen.values())
            self._verdict.value = f"<b>{html.escape(found.verdict)}</b>"
            scored, added, _ = group_tables(found, completions=False)
            self._scores.value = scored._repr_html_() + added._repr_html_()
        self._status.value = self._state(time.perf_counter() - started)
        if everything:
            self._report.value = self._fold(self.bench.report())

    def _state(self, seconds: float) -> str:
        if self.bench.problem:
            text = f"{self.bench.problem}\nThe last task that could be loaded is still shown."
            return _said(text, "#c0392b")
        file = f"{shown(self.bench.file)}, loaded again when it is saved; " if self.bench.file is not None else ""
        blind = f" (cannot see what {', '.join(self._unseen)} matched)" if self._unseen else ""
        legend = f"yellow: what a function matched{blind}; underlined: what the prompt asks for. "
        return _said(f"{legend}{file}reward hash {self.bench.suite.hash}; scored in {1000 * seconds:.0f} ms", "#5d6d7e")

    # --- the task file ------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        if self.bench.file is None or self._watching is not None:
            return
        before = _OPEN.get(str(self.bench.file))
        if before is not None and before is not self and before._watching is not None:
            before._watching.cancel()
        _OPEN[str(self.bench.file)] = self
        with contextlib.suppress(RuntimeError):  # without an event loop nothing could be clicked either
            self._watching = asyncio.get_running_loop().create_task(self._look_after())

    async def _look_after(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                self.look()
            except Exception as error:  # the next save may be better
                self._status.value = _said(f"{type(error).__name__}: {error}", "#c0392b")

    def look(self) -> None:
        """Load the task again if its file was saved. The panel does this by itself."""
        if not self.bench.reload_if_saved():
            return
        self.number = min(self.number, len(self.bench.task.rows) - 1)
        if not self.bench.problem:
            self._prompts.unobserve(self._prompt_changed, "value")
            self._prompts.options = self._offered()
            self._prompts.value = self.number
            self._prompts.observe(self._prompt_changed, "value")
            self._marks.options = self._markable()
        self.refresh(everything=True)


def _put(area: Any, starters: dict[str, str], name: str) -> None:
    if name:
        area.value = starters[name]


def _one(found: ExplainedGroup, index: int, text: str, problems: Sequence[str]) -> str:
    """One completion as it was read: what matched, each function's score, the total and the advantage."""
    scores = ", ".join(
        f"{html.escape(short_name(name))} <b>{_number(score)}</b>"
        for name, score in zip(found.names, found.scores[index], strict=True)
    )
    total, advantage = _number(found.totals[index]), found.advantages[index]
    colour = "#1e8449" if advantage > 0 else "#c0392b" if advantage < 0 else "#5d6d7e"
    head = f"total <b>{total}</b>, advantage <b style='color:{colour}'>{advantage:+.2f}</b><br>{scores}"
    return head + text + "".join(_said(problem, "#c0392b") for problem in problems)


def _number(value: float) -> str:
    return "-" if value != value else f"{value:.3g}"


def _said(text: str, colour: str) -> str:
    return f"<pre style='{PRE};color:{colour}'>{html.escape(plain(text))}</pre>"


def _question(row: Row) -> str:
    prompt = row["prompt"]
    return (prompt if isinstance(prompt, str) else str(prompt[-1]["content"])).strip()


def _prompt_text(row: Row) -> str:
    prompt = row["prompt"]
    if isinstance(prompt, str):
        return prompt
    return "\n\n".join(f"[{message['role']}]\n{message['content']}" for message in prompt)
