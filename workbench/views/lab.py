"""The lab: a group of completions that are scored while one types, beside what reward hacks earn.

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
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from workbench.audit.examination import RewardAudit, audit_rewards
from workbench.audit.probes import probes
from workbench.audit.prompt_format import parse_format
from workbench.audit.reference_completion import CompletionBuilder, builders
from workbench.errors import RecipeError, TaskError, WorkbenchError
from workbench.rewards.groups import SCALES, ExplainedGroup, batch_of, explain
from workbench.rewards.suite import RewardSuite
from workbench.task import Row, Task, load_task
from workbench.views.audit import audit_view
from workbench.views.controls import GREEN, MUTED, RED, WIDGETS, widget_view
from workbench.views.groups import group_tables
from workbench.views.tables import LONGEST_SHOWN, PRE, Table, number, plain, pre, short_name
from workbench.workspace import shown

MOST_PROMPTS = 100  # offered in the list
_LOOK_S = 0.5  # between two looks at the task file
_PAUSE_S = 0.15  # of typing, after which it is scored
_STARTERS = ("an honest answer", "a wrong answer", "empty tags", "several answers as a hedge", "empty")
_DEADLINE_S = 5.0  # for one function and all completions of the panel
_MARK = "background:#ffe08a;color:#222"
_ASKED = "border-bottom:2px solid #0072B2"
_OPEN: dict[str, Lab] = {}  # the panel that looks after each task file: run again, a cell replaces it


class Bench:
    """A task and what scores completions of its prompts: what the panel shows, without the panel.

    Args:
        task: a `Task`, a task file, or the name of a task that ships.
        scale_rewards: TRL's setting, for the advantages.

    Raises:
        TaskError: if the task cannot be loaded, has no prompts, or a function lacks a column.
    """

    def __init__(self, task: Task | str | Path, scale_rewards: str = "group") -> None:
        self.scale_rewards = scale_rewards
        self.task = task if isinstance(task, Task) else load_task(task)
        if not len(self.task.rows):
            raise TaskError(
                f"task {self.task.name!r}: 0 prompts", rule="completions answer a prompt", remedy="give the task rows"
            )
        self._writers: dict[int, CompletionBuilder] = {}
        self.writer(0)
        # A function that fails leaves its completion without a score.
        self.suite = RewardSuite(self.task, 1, deadline_s=_DEADLINE_S, on_error="skip", keep_state=False)
        try:
            self.suite.check_signatures(self.task.rows)
        except BaseException:
            self.close()
            raise

    @cached_property
    def audit(self) -> RewardAudit:
        """What `audit_rewards` finds in the task."""
        return audit_rewards(self.task)

    def close(self) -> None:
        """End the functions' worker process."""
        self.suite.close()

    def writer(self, row: int) -> CompletionBuilder:
        """How an honest policy writes for a prompt of the task."""
        if row not in self._writers:
            rows = self.task.rows
            near = [rows[other] for other in range(min(len(rows), 20)) if other != row]
            self._writers[row] = builders(self.task, [rows[row], *near])[0]
        return self._writers[row]

    def starters(self, row: int) -> dict[str, str]:
        """Completions to begin with, by name: the reference completions, then the probes."""
        writer = self.writer(row)
        first, *others = writer.reference_completions().items()
        found = {"an honest answer": first[1], **{f"honest, {name}": text for name, text in others}}
        return found | {probe.name: probe.text for probe in probes(writer, self.task.probes)}

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
        names = self.suite.names if function is None else [function]
        traces = [self.suite.trace(name, [row], [text]) for name in names]
        return set().union(*(trace.matched.get(text, set()) for trace in traces if trace is not None))

    def tables(self, row: Row, texts: Sequence[str]) -> list[Any]:
        """The panel as plain tables."""
        found, problems = self.group(row, texts)
        parts: list[Any] = group_tables(found)
        if problems:
            rows = [[index, what] for index, each in sorted(problems.items()) for what in each]
            parts.append(Table(["completion", "what a function did instead of scoring it"], rows))
        return [*parts, self.report()]

    def report(self) -> Any:
        """The audit for people, or why there is none."""
        try:
            return audit_view(self.audit, chart=False)
        except WorkbenchError as error:
            return Table(["the task cannot be audited"], [[str(error)]])


class Lab:
    """The panel. Show it by leaving it as the last line of a cell.

    >>> lab = wb.Lab("arithmetic", ["<answer>42</answer>", "42"])

    Args:
        task: a `Task`, a task file, or the name of a task that ships.
        completions: texts to begin with; None: a reference completion and three probes.
        row: number of the prompt to begin with.
        scale_rewards: TRL's setting, for the advantages.

    Raises:
        RecipeError: if `scale_rewards` is unknown.
        TaskError: if the task cannot be used, or a completion is no text.
        IndexError: if the task has no such row.
    """

    def __init__(
        self,
        task: Task | str | Path,
        completions: Sequence[str] | None = None,
        row: int = 0,
        scale_rewards: str | bool = "group",
    ) -> None:
        scale = {True: "group", False: "none"}.get(scale_rewards, scale_rewards)
        if scale not in SCALES:
            remedy = f"one of {', '.join(SCALES)}"
            raise RecipeError(f"scale_rewards = {scale_rewards!r}", rule="TRL's setting", remedy=remedy)
        given = [completions] if isinstance(completions, str) else completions
        if given is not None and not all(isinstance(text, str) for text in given):
            value = f"completions = {given!r:.200}"
            raise TaskError(value, rule="a completion is a text", remedy="give a list of texts")
        self.bench = Bench(task, scale)
        rows = self.bench.task.rows
        if not 0 <= row < len(rows):
            raise IndexError(f"row = {row}: the task has {len(rows)} rows")
        self.number = row
        self.file = Path(self.bench.task.source) if self.bench.task.source else None
        self.problem = ""  # why the file as it is now cannot be used
        self._stamp = self._saved()
        starters = self.bench.starters(row)
        first = [starters[name] for name in _STARTERS if name in starters][:4]
        self.texts = first if given is None else list(given)
        self._unseen: list[str] = []  # functions that paid for something that cannot be shown
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
        static = "".join([pre(_question(self.row)), *(part._repr_html_() for part in parts), _fold(report)])
        bundle = {"text/html": static, "text/plain": repr(self)}
        if self.widget is None:
            return bundle
        self._watch()
        return {**bundle, **widget_view(self.widget)}

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
            import ipywidgets as kit
        except ImportError:
            return None
        wide, words = kit.Layout(width="98%"), {"description_width": "initial"}
        self._prompts = kit.Dropdown(
            options=self._offered(), value=self.number, description="prompt", layout=kit.Layout(width="70%")
        )
        self._scale = kit.Dropdown(options=list(SCALES), value=self.bench.scale_rewards, description="scale_rewards", style=words)
        self._marks = kit.Dropdown(
            options=self._markable(), value="", description="highlight", style=words, layout=kit.Layout(width="40%")
        )
        texts = [kit.HTML(layout=wide) for _ in range(5)]
        self._prompt, self._status, self._verdict, self._scores, self._report = texts
        self._boxes = kit.VBox([], layout=wide)
        self._prompts.observe(self._prompt_changed, "value")
        self._scale.observe(self._scale_changed, "value")
        self._marks.observe(lambda _: self._soon(), "value")
        self._fill()
        self.refresh(everything=True)
        settings = kit.HBox([self._scale, self._marks])
        top = [kit.HBox([self._prompts]), self._prompt, self._status, self._boxes, settings]
        return kit.VBox([*top, self._verdict, self._scores, self._report])

    def _offered(self) -> list[tuple[str, int]]:
        rows = self.bench.task.rows
        numbers = sorted({*range(min(len(rows), MOST_PROMPTS)), self.number})
        return [(f"{number}: {_question(rows[number])[:80]}", number) for number in numbers]

    def _markable(self) -> list[tuple[str, str]]:
        return [("what any function matched", ""), *((name, name) for name in self.bench.suite.names)]

    def _fill(self) -> None:
        # One line per completion: what is typed, and what is found in it.
        import ipywidgets as kit

        wide, half = kit.Layout(width="98%"), kit.Layout(width="50%")
        starters = self.bench.starters(self.number)
        options = [("(choose a completion)", ""), *((name, name) for name in starters)]
        self._cells: list[tuple[Any, Any]] = []
        lines = []
        for index, text in enumerate(self.texts):
            narrow = {"description_width": "1.5em"}
            chooser = kit.Dropdown(options=options, description=str(index), style=narrow, layout=wide)
            high = kit.Layout(width="98%", height="9em")
            area = kit.Textarea(value=text, rows=6, placeholder="type a completion", layout=high)
            area.add_class(f"workbench-completion-{index}")
            seen = kit.HTML(layout=half)
            seen.add_class(f"workbench-seen-{index}")
            area.observe(lambda change, index=index: self._typed(index, change["new"]), "value")
            chooser.observe(lambda change, area=area: _put(area, starters, change["new"]), "value")
            self._cells.append((area, seen))
            lines.append(kit.HBox([kit.VBox([chooser, area], layout=half), seen]))
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
            everything: the prompt and the audit too.
        """
        try:
            self._show(everything)
        except Exception as error:  # whatever a task's functions do, the panel stays usable
            self._verdict.value = _coloured(f"{type(error).__name__}: {error}", RED)

    def _show(self, everything: bool) -> None:
        row, started = self.row, time.perf_counter()
        asked = [mark for block in parse_format(row).blocks for mark in (block.opening, block.closing)]
        if everything:
            writer = self.bench.writer(self.number)
            answer = f"<b>right answer</b> {html.escape(plain(writer.answer))}" if writer.has_answer else ""
            self._prompt.value = pre(_prompt_text(row)) + (f"<pre style='{PRE}'>{answer}</pre>" if answer else "")
        if self.texts:
            found, problems = self.bench.group(row, self.texts)
            unseen = {}
            for index, (_, seen) in enumerate(self._cells):
                matched = set()
                for place, name in enumerate(self.bench.suite.names):
                    if self._marks.value in ("", name):
                        own = self.bench.matched(row, self.texts[index], name)
                        matched |= own
                        if not own and found.scores[index, place] > 0:
                            unseen[name] = short_name(name)
                text = highlighted(self.texts[index], matched, asked)
                seen.value = _one(found, index, text, problems.get(index, []))
            self._unseen = list(unseen.values())
            self._verdict.value = f"<b>{html.escape(found.verdict)}</b>"
            scored, added, _ = group_tables(found, completions=False)
            self._scores.value = scored._repr_html_() + added._repr_html_()
        self._status.value = self._state(time.perf_counter() - started)
        if everything:
            self._report.value = _fold(self.bench.report())

    def _state(self, seconds: float) -> str:
        if self.problem:
            return _coloured(f"{self.problem}\nThe last task that could be loaded is still shown.", RED)
        file = f"{shown(self.file)}, reloaded when saved; " if self.file is not None else ""
        blind = f" (cannot see what {', '.join(self._unseen)} matched)" if self._unseen else ""
        legend = f"yellow: what a function matched{blind}; underlined: what the prompt asks for. "
        text = f"{legend}{file}reward hash {self.bench.suite.hash}; scored in {1000 * seconds:.0f} ms"
        return _coloured(text, MUTED)

    # --- the task file ------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        if self.file is None or self._watching is not None:
            return
        before = _OPEN.get(str(self.file))
        if before is not None and before is not self and before._watching is not None:
            before._watching.cancel()
        _OPEN[str(self.file)] = self
        with contextlib.suppress(RuntimeError):  # without an event loop nothing could be clicked either
            self._watching = asyncio.get_running_loop().create_task(self._look_after())

    async def _look_after(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                self.look()
            except Exception as error:  # the next save may be better
                self._status.value = _coloured(f"{type(error).__name__}: {error}", RED)

    def _saved(self) -> tuple[int, int] | None:
        try:
            found = self.file.stat() if self.file is not None else None
        except OSError:
            return None
        return (found.st_mtime_ns, found.st_size) if found is not None else None

    def look(self) -> None:
        """Load the task again if its file was saved; the last good one stays while it cannot be. The panel does it itself."""
        stamp = self._saved()
        if stamp is None or stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            fresh = Bench(self.file, self.bench.scale_rewards)
        except (Exception, SystemExit) as error:  # whatever is written there, the panel stays
            self.problem = str(error) if isinstance(error, WorkbenchError) else f"{type(error).__name__}: {error}"
        else:
            self.bench.close()
            self.bench, self.problem = fresh, ""
            self.number = min(self.number, len(fresh.task.rows) - 1)
            self._prompts.unobserve(self._prompt_changed, "value")
            self._prompts.options, self._prompts.value = self._offered(), self.number
            self._prompts.observe(self._prompt_changed, "value")
            self._marks.options = self._markable()
        self.refresh(everything=True)


def _put(area: Any, starters: dict[str, str], name: str) -> None:
    if name:
        area.value = starters[name]


def _fold(report: Any) -> str:
    # Opened by a click, so that nobody reads a flaw before having looked for it.
    return f"<details><summary>what the audit finds in these rewards</summary>{report._repr_html_()}</details>"


def _one(found: ExplainedGroup, index: int, text: str, problems: Sequence[str]) -> str:
    """One completion as it was read: what matched, each function's score, the total and the advantage."""
    pairs = zip(found.names, found.scores[index], strict=True)
    scores = ", ".join(f"{html.escape(short_name(name))} <b>{number(score)}</b>" for name, score in pairs)
    advantage = found.advantages[index]
    colour = GREEN if advantage > 0 else RED if advantage < 0 else MUTED
    total = f"total <b>{number(found.totals[index])}</b>, advantage <b style='color:{colour}'>{advantage:+.2f}</b>"
    return f"{total}<br>{scores}{text}" + "".join(_coloured(problem, RED) for problem in problems)


def _coloured(text: str, colour: str) -> str:
    return pre(text, f"color:{colour}")


def _question(row: Row) -> str:
    prompt = row["prompt"]
    return (prompt if isinstance(prompt, str) else str(prompt[-1]["content"])).strip()


def _prompt_text(row: Row) -> str:
    prompt = row["prompt"]
    if isinstance(prompt, str):
        return prompt
    return "\n\n".join(f"[{message['role']}]\n{message['content']}" for message in prompt)


def highlighted(text: str, matched: Iterable[tuple[int, int]], asked: Iterable[str] = ()) -> str:
    """HTML of a completion in `<pre>`, where neither HTML nor MathJax runs, with what was matched in it marked.

    Args:
        matched: (start, end) of what the functions took out of it; shown on yellow.
        asked: the marks of the format that was asked for (`<answer>`, ...); underlined where they stand.
    """
    text, more = text[:LONGEST_SHOWN], max(0, len(text) - LONGEST_SHOWN)
    found, named = [False] * len(text), [False] * len(text)
    for start, end in matched:
        found[start:end] = [True] * len(found[start:end])
    for mark in filter(None, asked):
        place = text.find(mark)
        while place >= 0:
            named[place : place + len(mark)] = [True] * len(mark)
            place = text.find(mark, place + len(mark))
    pieces, start = [], 0
    for index in range(1, len(text) + 1):
        if index == len(text) or (found[index], named[index]) != (found[start], named[start]):
            pieces.append(_piece(text[start:index], found[start], named[start]))
            start = index
    tail = f" … ({more} more characters)" if more else ""
    return f"<pre style='{PRE}'>{''.join(pieces)}{tail}</pre>"


def _piece(text: str, found: bool, named: bool) -> str:
    # White space that was matched would not be seen.
    body = html.escape(plain(text))
    if found:
        body = f"<mark style='{_MARK}'>{body.replace(chr(10), '↵' + chr(10))}</mark>"
    return f"<span style='{_ASKED}'>{body}</span>" if named else body
