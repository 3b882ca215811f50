"""The lab: a group of completions that are scored while one types, beside what reward hacks earn; without widgets, as tables.

A task that came from a file is loaded again whenever the file is saved. Everything runs between cells, on the kernel's own
event loop: no thread touches a widget, which some front ends forbid. While a cell runs, the panel waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import itertools
import os
import re
import time
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from workbench.audit.completions import CompletionBuilder, builders, probes
from workbench.audit.examination import audit_rewards
from workbench.audit.prompt_format import parse_format
from workbench.errors import RecipeError, TaskError, WorkbenchError
from workbench.inspection.reading import question
from workbench.rewards.groups import SCALES, ExplainedGroup, batch_of, explain_in
from workbench.rewards.suite import RewardSuite
from workbench.task import Row, Task, load_task
from workbench.views.audit import audit_view
from workbench.views.controls import WIDGETS, widget_view
from workbench.views.groups import group_tables
from workbench.views.tables import BAD, GOOD, LONGEST_SHOWN, MUTED, PRE, Table, coloured, number, one_line, plain, pre, short_name
from workbench.workspace import shown

MOST_PROMPTS = 100  # offered in the list
_LOOK_S = 0.5  # between two looks at the task file
_PAUSE_S = 0.15  # of typing, after which it is scored
_STARTERS = ("an honest answer", "a wrong answer", "empty tags", "several answers as a hedge", "empty")
_DEADLINE_S = 5.0  # for one function and all completions of the panel
_MARK = "background:#ffe08a;color:#222"
_ASKED = "border-bottom:2px solid #0072B2"
_WIDE, _HALF, _WORDS = {"width": "98%"}, {"width": "50%"}, {"description_width": "initial"}
_OPEN: dict[str, asyncio.Task] = {}  # what looks after each task file, for a panel: run again, a cell replaces it


class Bench:
    """A task and what scores completions of its prompts: what the panel shows, without the panel. Arguments as for `Lab`.

    Raises:
        TaskError: if the task cannot be loaded, has no prompts, or a function lacks a column.
    """

    def __init__(self, task: Task | str | Path, scale_rewards: str = "group") -> None:
        self.scale_rewards = scale_rewards
        self.task = load_task(task)
        if not len(self.task.rows):
            raise TaskError(f"task {self.task.name!r}: 0 prompts", rule="completions answer a prompt", remedy="give it rows")
        self._writers: dict[int, CompletionBuilder] = {}
        self.writer(0)
        # A function that fails leaves its completion without a score.
        self.suite = RewardSuite(self.task, 1, deadline_s=_DEADLINE_S, on_error="skip", keep_state=False)
        try:
            self.suite.check_signatures(self.task.rows)
        except BaseException:
            self.suite.close()
            raise

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
        (_, first), *others = writer.reference_completions().items()
        found = {"an honest answer": first, **{f"honest, {name}": text for name, text in others}}
        return found | {probe.name: probe.text for probe in probes(writer, self.task.probes)}

    def group(self, row: Row, texts: Sequence[str]) -> tuple[ExplainedGroup, list[tuple[int, str]]]:
        """(the completions as one group, (completion, what a function did instead of scoring it) for each that failed)."""
        texts = list(texts) or [""]  # nothing written yet
        scored = self.suite.score_each([row] * len(texts), texts, quiet=True)
        scores = np.array([scored[name].scores for name in self.suite.names], dtype=float).T
        right = self.task.is_right(scored[self.task.right_function].scores)
        problems = [(index, f"{name} {what}") for name, each in scored.items() for index, what in each.errors.items()]
        found = batch_of(self.suite.names, self.suite.weights, scores, texts, right, len(texts), self.scale_rewards)
        return explain_in(found), sorted(problems, key=lambda each: each[0])

    def matched(self, row: Row, text: str, function: str) -> set[tuple[int, int]]:
        """(start, end) of what a function took out of a completion."""
        trace = self.suite.trace(function, [row], [text])
        return trace.matched.get(text, set()) if trace is not None else set()

    def tables(self, row: Row, texts: Sequence[str]) -> list[Any]:
        """The panel as plain tables, the audit last."""
        found, problems = self.group(row, texts)
        failed = [Table(["completion", "what a function did instead of scoring it"], problems)] if problems else []
        return [*group_tables(found), *failed, self.report]

    @cached_property
    def report(self) -> Any:
        """What `audit_rewards` finds in the task, for people, or why it cannot be audited."""
        try:
            return audit_view(audit_rewards(self.task), chart=False)
        except WorkbenchError as error:
            return Table(["the task cannot be audited"], [[str(error)]])


class Lab:
    """The panel. Show it by leaving it as the last line of a cell.

    >>> lab = wb.Lab("arithmetic", ["<answer>42</answer>", "42"])

    Args:
        task: a `Task`, a task file, or the name of a task that ships.
        completions: texts to begin with; None: a reference completion and three probes, or nothing where that one was guessed.
        row: number of the prompt to begin with.
        scale_rewards: TRL's setting, for the advantages.

    Raises:
        RecipeError: if `scale_rewards` is unknown.
        TaskError: if the task cannot be used, or a completion is no text.
        IndexError: if the task has no such row.
    """

    def __init__(
        self, task: Task | str | Path, completions: Sequence[str] | None = None, row: int = 0, scale_rewards: str | bool = "group"
    ) -> None:
        scale = {True: "group", False: "none"}.get(scale_rewards, scale_rewards)
        if scale not in SCALES:
            raise RecipeError(f"scale_rewards = {scale_rewards!r}", rule="TRL's setting", remedy=f"one of {', '.join(SCALES)}")
        given = [completions] if isinstance(completions, str) else completions
        if given is not None and not all(isinstance(text, str) for text in given):
            raise TaskError(f"completions = {given!r:.200}", rule="a completion is a text", remedy="give a list of texts")
        self.bench = Bench(task, scale)
        if not 0 <= row < (count := len(self.bench.task.rows)):
            raise IndexError(f"row = {row}: the task has {count} rows")
        self.number, self.problem = row, ""  # the problem: why the file as it is now cannot be used
        self.file = Path(self.bench.task.source) if self.bench.task.source else None
        self._stamp = self._saved()
        starters = {} if self.bench.writer(row).guessed else self.bench.starters(row)
        first = [starters[name] for name in _STARTERS if name in starters][:4] or [""]
        self.texts = first if given is None else list(given)
        self._pending: Any = None
        self._watching: asyncio.Task | None = None
        self.widget = self._build()

    @property
    def row(self) -> Row:
        """The prompt that is shown, as the task's row."""
        return self.bench.task.rows[self.number]

    def __repr__(self) -> str:
        return self._static()["text/plain"]

    def _static(self) -> dict[str, str]:
        asked, (*parts, report) = question(self.row["prompt"]).strip(), self.bench.tables(self.row, self.texts)
        page = "".join([pre(asked), *(part._repr_html_() for part in parts), _fold(report)])
        return {"text/html": page, "text/plain": "\n\n".join([plain(asked), *map(str, parts), str(report)])}

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        # The tables go along for readers of the saved notebook, where no kernel answers the widgets.
        if self.widget is None:
            return self._static()
        self._watch()
        return {**self._static(), **widget_view(self.widget)}

    def close(self) -> None:
        """Stop looking after the task file, and end the functions' process."""
        if self._watching is not None:
            self._watching.cancel()
        self.bench.suite.close()
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
        scales = {"options": list(SCALES), "value": self.bench.scale_rewards}
        self._prompts = kit.Dropdown(description="prompt", layout={"width": "70%"})
        self._scale = kit.Dropdown(description="scale_rewards", style=_WORDS, **scales)
        self._marks = kit.Dropdown(description="highlight", style=_WORDS, layout={"width": "40%"})
        self._prompts.observe(self._prompt_changed, "value")
        self._offer()
        texts = [kit.HTML(layout=_WIDE) for _ in range(5)]
        self._prompt, self._status, self._verdict, self._scores, self._report = texts
        self._boxes = kit.VBox([], layout=_WIDE)
        self._scale.observe(self._scale_changed, "value")
        self._marks.observe(self._soon, "value")
        self._fill()
        self.refresh(everything=True)
        top = [kit.HBox([self._prompts]), self._prompt, self._status, self._boxes, kit.HBox([self._scale, self._marks])]
        return kit.VBox([*top, self._verdict, self._scores, self._report])

    def _offer(self) -> None:
        # The prompts and functions of the task, to choose from.
        rows = self.bench.task.rows
        numbers = sorted({*range(min(len(rows), MOST_PROMPTS)), self.number})
        prompts = [(one_line(f"{number}: {question(rows[number]['prompt']).strip()}", 84), number) for number in numbers]
        self._prompts.unobserve(self._prompt_changed, "value")
        self._prompts.options, self._prompts.value = prompts, self.number
        self._prompts.observe(self._prompt_changed, "value")
        names = [(one_line(name, 80), name) for name in self.bench.suite.names]
        self._marks.options = [("what any function matched", ""), *names]
        self._marks.value = ""

    def _fill(self) -> None:
        # One line per completion: what is typed, and what is found in it.
        import ipywidgets as kit

        starters = self.bench.starters(self.number)
        options = [("(choose a completion)", ""), *((one_line(name, 80), name) for name in starters)]
        self._cells: list[tuple[Any, Any]] = []
        lines = []
        for index, text in enumerate(self.texts):
            chooser = kit.Dropdown(options=options, description=str(index), style={"description_width": "1.5em"}, layout=_WIDE)
            area = kit.Textarea(value=text, rows=6, placeholder="type a completion", layout={**_WIDE, "height": "9em"})
            area.add_class(f"workbench-completion-{index}")
            seen = kit.HTML(layout=_HALF)
            seen.add_class(f"workbench-seen-{index}")

            def typed(change: dict[str, Any], index: int = index) -> None:
                self.texts[index] = change["new"]
                self._soon()

            def put(change: dict[str, Any], area: Any = area) -> None:
                area.value = starters.get(change["new"], area.value)

            area.observe(typed, "value")
            chooser.observe(put, "value")
            self._cells.append((area, seen))
            lines.append(kit.HBox([kit.VBox([chooser, area], layout=_HALF), seen]))
        add = kit.Button(description="one more completion", layout={"width": "auto", "align_self": "flex-start"})
        add.on_click(self._add)
        self._boxes.children = [*lines, add]

    def _add(self, _: Any) -> None:
        self.texts.append("")
        self._fill()
        self.refresh()

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

    def _soon(self, _: Any = None) -> None:
        # Once the typing pauses, so that a slow function is not asked for every letter.
        if self._pending is not None:
            self._pending.cancel()
        try:
            self._pending = asyncio.get_running_loop().call_later(_PAUSE_S, self.refresh)
        except RuntimeError:
            self.refresh()

    def refresh(self, everything: bool = False) -> None:
        """Score what stands in the boxes; with `everything`, show the prompt and the audit anew too."""
        try:
            self._show(everything)
        except Exception as error:  # whatever a task's functions do, the panel stays usable
            self._verdict.value = coloured(f"{type(error).__name__}: {error}", BAD)

    def _show(self, everything: bool) -> None:
        row, started = self.row, time.perf_counter()
        asked = [mark for block in parse_format(row).blocks for mark in (block.opening, block.closing)]
        if everything:
            writer, prompt = self.bench.writer(self.number), row["prompt"]
            if not isinstance(prompt, str):
                prompt = "\n\n".join(f"[{message['role']}]\n{message['content']}" for message in prompt)
            self._prompt.value = pre(prompt) + (f"<b>right answer</b>{pre(writer.answer)}" if writer.has_answer else "")
        unseen = {}  # functions that paid for something that cannot be shown
        if self.texts:
            found, problems = self.bench.group(row, self.texts)
            looked_at = [name for name in found.names if self._marks.value in ("", name)]
            for index, (text, (_, seen)) in enumerate(zip(self.texts, self._cells, strict=True)):
                matched = {name: self.bench.matched(row, text, name) for name in looked_at}
                paid = dict(zip(found.names, found.scores[index] > 0, strict=True))
                unseen |= {name: short_name(name) for name in looked_at if paid[name] and not matched[name]}
                text = highlighted(text, set().union(*matched.values()), asked)
                seen.value = _one(found, index, text, [what for place, what in problems if place == index])
            self._verdict.value = f"<b>{pre(found.verdict)}</b>"
            scored, added, _ = group_tables(found, completions=False)
            self._scores.value = scored._repr_html_() + added._repr_html_()
        blind = f" (cannot see what {', '.join(unseen.values())} matched)" if unseen else ""
        file = f"{shown(self.file)}, reloaded when saved; " if self.file is not None else ""
        legend = f"yellow: what a function matched{blind}; underlined: what the prompt asks for. {file}"
        scored = f"reward hash {self.bench.suite.hash}; scored in {1000 * (time.perf_counter() - started):.0f} ms"
        problem = f"{self.problem}\nThe last task that could be loaded is still shown."
        self._status.value = coloured(problem, BAD) if self.problem else coloured(f"{legend}{scored}", MUTED)
        if everything:
            self._report.value = _fold(self.bench.report)

    # --- the task file ------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        if self.file is None or self._watching is not None:
            return
        with contextlib.suppress(RuntimeError):  # without an event loop nothing could be clicked either
            self._watching = asyncio.get_running_loop().create_task(self._look_after())
            before, _OPEN[str(self.file)] = _OPEN.get(str(self.file)), self._watching
            if before is not None:
                before.cancel()

    async def _look_after(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                self.look()
            except Exception as error:  # the next save may be better
                self._status.value = coloured(f"{type(error).__name__}: {error}", BAD)

    def _saved(self) -> tuple[int, int] | None:
        try:
            found = self.file.stat()
        except (OSError, AttributeError):  # it is not there at the moment, or there is no file at all
            return None
        return found.st_mtime_ns, found.st_size

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
            self.bench.suite.close()
            self.bench, self.problem = fresh, ""
            self.number = min(self.number, len(fresh.task.rows) - 1)
            self._offer()
        self.refresh(everything=True)


def _fold(report: Any) -> str:
    # Opened by a click, so that nobody reads a flaw before having looked for it.
    return f"<details><summary>what the audit finds in these rewards</summary>{report._repr_html_()}</details>"


def _one(found: ExplainedGroup, index: int, text: str, problems: Sequence[str]) -> str:
    pairs = zip(found.names, found.scores[index], strict=True)
    scores = ", ".join(f"{html.escape(plain(short_name(name)))} <b>{number(score)}</b>" for name, score in pairs)
    advantage = found.advantages[index]
    colour = GOOD if advantage > 0 else BAD if advantage < 0 else MUTED
    total = f"total <b>{number(found.totals[index])}</b>, advantage <b style='color:{colour}'>{advantage:+.2f}</b>"
    return f"{total}<br>{scores}{text}" + "".join(coloured(problem, BAD) for problem in problems)


def highlighted(text: str, matched: Iterable[tuple[int, int]], asked: Iterable[str] = ()) -> str:
    """HTML of a completion: on yellow what was matched in it, by (start, end); underlined the marks that were asked for."""
    text, more = text[:LONGEST_SHOWN], len(text) - LONGEST_SHOWN
    places = range(len(text))
    found = {place for span in matched for place in places[slice(*span)]}
    named = {place for mark in filter(None, asked) for hit in re.finditer(re.escape(mark), text) for place in range(*hit.span())}
    pieces = []
    for (is_found, is_named), run in itertools.groupby(places, lambda place: (place in found, place in named)):
        body = html.escape(plain("".join(text[place] for place in run)))
        if is_found:  # white space that was matched would not be seen
            body = f"<mark style='{_MARK}'>{body.replace(chr(10), '↵' + chr(10))}</mark>"
        pieces.append(f"<span style='{_ASKED}'>{body}</span>" if is_named else body)
    tail = f" … ({more} more characters)" if more > 0 else ""
    return f"<pre style='{PRE}'>{''.join(pieces)}{tail}</pre>"
