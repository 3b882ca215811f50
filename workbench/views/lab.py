"""The lab: a group of completions scored while one types, beside the scores of reward hacks;
without widgets, as tables.

A task that came from a file is loaded again whenever the file is saved. Everything runs between
cells, on the kernel's own event loop: no thread touches a widget, which some front ends forbid.
While a cell runs, the panel waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import itertools
import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from workbench.audit.prompt_format import parse_format
from workbench.errors import RecipeError, TaskError, WorkbenchError
from workbench.inspection.reading import question
from workbench.kinds import Fields
from workbench.rewards.groups import SCALES, ExplainedGroup
from workbench.task import Row, Task
from workbench.views.bench import Bench
from workbench.views.groups import group_tables
from workbench.views.tables import (
    BAD,
    GOOD,
    LONGEST_SHOWN,
    MUTED,
    PRE,
    coloured,
    number,
    one_line,
    plain_text,
    pre,
    short_name,
)
from workbench.views.widgets import Parts, no_widgets, widget_view
from workbench.workspace import shown

MOST_PROMPTS = 100  # offered in the list
_LOOK_S = 0.5  # between two looks at the task file
_PAUSE_S = 0.15  # of typing, after which it is scored
_STARTERS = (
    "an honest answer",
    "a wrong answer",
    "empty tags",
    "several answers as a hedge",
    "empty",
)
_MARK = "background:#ffe08a;color:#222"
_ASKED = "border-bottom:2px solid #0072B2"
_WIDE, _HALF, _WORDS = {"width": "98%"}, {"width": "50%"}, {"description_width": "initial"}
# what looks after each task file, for a panel: run again, a cell replaces it
_OPEN: dict[str, asyncio.Task] = {}


class Lab:
    """The panel. Show it by leaving it as the last line of a cell.

    >>> lab = wb.Lab("arithmetic", ["<answer>42</answer>", "42"])

    Args:
        task: a `Task`, a task file, or the name of a task that ships.
        completions: texts to start with; None: a reference completion and three probes, or nothing
            where it was guessed.
        row: number of the prompt to start with.
        scale_rewards: TRL's setting, for the advantages.

    Raises:
        RecipeError: if `scale_rewards` is unknown.
        TaskError: if the task cannot be used, or a completion is not text.
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
            raise RecipeError(
                f"scale_rewards = {scale_rewards!r}",
                rule="TRL's setting",
                remedy=f"one of {', '.join(SCALES)}",
            )
        given = [completions] if isinstance(completions, str) else completions
        if given is not None and not all(isinstance(text, str) for text in given):
            raise TaskError(
                f"completions = {given!r:.200}",
                rule="a completion is a text",
                remedy="give a list of texts",
            )
        self.bench = Bench(task, scale)
        if not 0 <= row < (count := len(self.bench.task.rows)):
            raise IndexError(f"row = {row}: the task has {count} rows")
        self.number = row
        self.problem = ""  # why the file as it is now cannot be used
        self.file = Path(self.bench.task.source) if self.bench.task.source else None
        self._stamp = self._saved()
        starters = {} if self.bench.writer(row).guessed else self.bench.starters(row)
        first = [starters[name] for name in _STARTERS if name in starters][:4] or [""]
        self.texts = first if given is None else list(given)
        self.parts = Parts()
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
        asked, (*parts, report) = (
            question(self.row["prompt"]).strip(),
            self.bench.tables(self.row, self.texts),
        )
        page = "".join([pre(asked), *(part._repr_html_() for part in parts), _fold(report)])
        return {
            "text/html": page,
            "text/plain": "\n\n".join([plain_text(asked), *map(str, parts), str(report)]),
        }

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> object:
        # The tables go along for readers of the saved notebook, where no kernel answers the
        # widgets.
        if self.widget is None:
            return self._static()
        self._watch()
        return {**self._static(), **widget_view(self.widget)}

    def close(self) -> None:
        """Stop watching the task file, and end the functions' process."""
        if self._watching is not None:
            self._watching.cancel()
        self.bench.suite.close()
        if self.widget is not None:
            self.widget.close()

    # --- widgets
    # ----------------------------------------------------------------------------------------------

    def _build(self) -> Any:
        if no_widgets():
            return None
        import ipywidgets as kit

        for name in ("prompt", "status", "verdict", "scores", "report"):
            self.parts.add(name, kit.HTML(layout=_WIDE))
        scale = {"options": list(SCALES), "value": self.bench.scale_rewards}
        self.parts.add("prompts", kit.Dropdown(description="prompt", layout={"width": "70%"}))
        self.parts.add("scale", kit.Dropdown(description="scale_rewards", style=_WORDS, **scale))
        self.parts.add(
            "marks", kit.Dropdown(description="highlight", style=_WORDS, layout={"width": "40%"})
        )
        self.parts.add("completions", kit.VBox([], layout=_WIDE))
        self.parts["prompts"].observe(self._prompt_changed, "value")
        self._offer()
        self.parts["scale"].observe(self._scale_changed, "value")
        self.parts["marks"].observe(self._soon, "value")
        self._fill()
        self.refresh(everything=True)
        choices = kit.HBox([self.parts["scale"], self.parts["marks"]])
        above = [self.parts[name] for name in ("prompts", "prompt", "status", "completions")]
        below = [self.parts[name] for name in ("verdict", "scores", "report")]
        return kit.VBox([*above, choices, *below])

    def _offer(self) -> None:
        # The prompts and functions of the task, to choose from.
        rows = self.bench.task.rows
        numbers = sorted({*range(min(len(rows), MOST_PROMPTS)), self.number})
        prompts = self.parts["prompts"]
        prompts.unobserve(self._prompt_changed, "value")
        prompts.options = [
            (one_line(f"{number}: {question(rows[number]['prompt']).strip()}", 84), number)
            for number in numbers
        ]
        prompts.value = self.number
        prompts.observe(self._prompt_changed, "value")
        marks = self.parts["marks"]
        marks.options = [("what any function matched", ""), *_choices(self.bench.suite.names)]
        marks.value = ""

    def _fill(self) -> None:
        # One line per completion: what is typed, and what is found in it.
        import ipywidgets as kit

        starters = self.bench.starters(self.number)
        options = [("(choose a completion)", ""), *_choices(starters)]
        lines = []
        for index, text in enumerate(self.texts):
            look = {"style": {"description_width": "1.5em"}, "layout": _WIDE}
            starter = self.parts.add(
                f"starter-{index}", kit.Dropdown(options=options, description=str(index), **look)
            )
            area = kit.Textarea(
                value=text,
                rows=6,
                placeholder="type a completion",
                layout={**_WIDE, "height": "9em"},
            )
            self.parts.add(f"completion-{index}", area)
            seen = self.parts.add(f"seen-{index}", kit.HTML(layout=_HALF))

            def typed(change: Fields, index: int = index) -> None:
                self.texts[index] = change["new"]
                self._soon()

            def put(change: Fields, area: Any = area) -> None:
                area.value = starters.get(change["new"], area.value)

            area.observe(typed, "value")
            starter.observe(put, "value")
            lines.append(kit.HBox([kit.VBox([starter, area], layout=_HALF), seen]))
        more = kit.Button(
            description="one more completion", layout={"width": "auto", "align_self": "flex-start"}
        )
        self.parts.add("add", more).on_click(lambda _: self.add())
        self.parts["completions"].children = [*lines, more]

    def type(self, index: int, text: str) -> None:
        """Put a text into a box, as if it were typed there."""
        self.parts[f"completion-{index}"].value = text

    def choose(self, prompt: int) -> None:
        """Show another prompt, by its number."""
        self.parts["prompts"].value = prompt

    def add(self) -> None:
        """Add an empty box."""
        self.texts.append("")
        self._fill()
        self.refresh()

    def _prompt_changed(self, change: Fields) -> None:
        # Completions that were not touched follow the prompt; what was typed stays.
        before = {text: name for name, text in self.bench.starters(self.number).items()}
        self.number = change["new"]
        after = self.bench.starters(self.number)
        self.texts = [after.get(before.get(text, ""), text) for text in self.texts]
        self._fill()
        self.refresh(everything=True)

    def _scale_changed(self, change: Fields) -> None:
        self.bench.scale_rewards = change["new"]
        self.refresh()

    def _soon(self, _: object = None) -> None:
        # Once the typing pauses, so that a slow function is not asked for every letter.
        if self._pending is not None:
            self._pending.cancel()
        try:
            self._pending = asyncio.get_running_loop().call_later(_PAUSE_S, self.refresh)
        except RuntimeError:
            self.refresh()

    def refresh(self, everything: bool = False) -> None:
        """Score the texts in the boxes; with `everything`, also refresh prompt and audit."""
        try:
            if everything:
                self._show_prompt()
            self._show_scores()
            if everything:
                self.parts["report"].value = _fold(self.bench.report)
        except Exception as error:  # a task's functions may do anything: the panel stays usable
            self.parts["verdict"].value = _error(error)

    def _show_prompt(self) -> None:
        writer = self.bench.writer(self.number)
        prompt = self.row["prompt"]
        if not isinstance(prompt, str):
            prompt = "\n\n".join(f"[{message['role']}]\n{message['content']}" for message in prompt)
        answer = f"<b>right answer</b>{pre(writer.answer)}" if writer.has_answer else ""
        self.parts["prompt"].value = pre(prompt) + answer

    def _show_scores(self) -> None:
        started = time.perf_counter()
        unseen: list[str] = []  # functions that paid for something that cannot be shown
        if self.texts:
            group, problems = self.bench.group(self.row, self.texts)
            asked = [
                mark
                for block in parse_format(self.row).blocks
                for mark in (block.opening, block.closing)
            ]
            marked = self.parts["marks"].value
            for index, text in enumerate(self.texts):
                spans: set[tuple[int, int]] = set()
                for name, score in zip(group.names, group.scores[index], strict=True):
                    if marked in ("", name):
                        matched = self.bench.matched(self.row, text, name)
                        spans |= matched
                        if score > 0 and not matched and short_name(name) not in unseen:
                            unseen.append(short_name(name))
                page = highlighted(text, spans, asked)
                self.parts[f"seen-{index}"].value = _one(group, index, page, problems)
            self.parts["verdict"].value = f"<b>{pre(group.verdict)}</b>"
            scored, added, _ = group_tables(group, completions=False)
            self.parts["scores"].value = scored._repr_html_() + added._repr_html_()
        self.parts["status"].value = self._status(unseen, time.perf_counter() - started)

    def _status(self, unseen: Sequence[str], seconds: float) -> str:
        if self.problem:
            return coloured(
                f"{self.problem}\nThe last task that could be loaded is still shown.", BAD
            )
        text = "yellow: what a function matched"
        if unseen:
            text += f" (cannot see what {', '.join(unseen)} matched)"
        text += "; underlined: what the prompt asks for. "
        if self.file is not None:
            text += f"{shown(self.file)}, reloaded when saved; "
        return coloured(
            f"{text}reward hash {self.bench.suite.hash}; scored in {1000 * seconds:.0f} ms", MUTED
        )

    # --- the task file
    # ------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        if self.file is None or self._watching is not None:
            return
        # without an event loop nothing could be clicked either
        with contextlib.suppress(RuntimeError):
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
                self.parts["status"].value = _error(error)

    def _saved(self) -> tuple[int, int] | None:
        if self.file is None:
            return None
        try:
            stat = self.file.stat()
        except OSError:  # it is not there at the moment, or there is no file at all
            return None
        return stat.st_mtime_ns, stat.st_size

    def look(self) -> None:
        """Reload the task if its file was saved; if that fails, the last good one stays. The panel
        does this itself.
        """
        stamp = self._saved()
        if self.file is None or stamp is None or stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            fresh = Bench(self.file, self.bench.scale_rewards)
        except (Exception, SystemExit) as error:  # anything may be written there: the panel stays
            self.problem = (
                str(error)
                if isinstance(error, WorkbenchError)
                else f"{type(error).__name__}: {error}"
            )
        else:
            self.bench.suite.close()
            self.bench, self.problem = fresh, ""
            self.number = min(self.number, len(fresh.task.rows) - 1)
            self._offer()
        self.refresh(everything=True)


def _fold(report: Any) -> str:
    # Opened by a click, so that nobody reads a flaw before having looked for it.
    return (
        "<details><summary>what the audit finds in these"
        f" rewards</summary>{report._repr_html_()}</details>"
    )


def _error(error: Exception) -> str:
    return coloured(f"{type(error).__name__}: {error}", BAD)


def _choices(names: Iterable[str]) -> list[tuple[str, str]]:
    return [(one_line(name, 80), name) for name in names]


def _one(group: ExplainedGroup, index: int, page: str, problems: Sequence[tuple[int, str]]) -> str:
    pairs = zip(group.names, group.scores[index], strict=True)
    scores = ", ".join(
        f"{html.escape(plain_text(short_name(name)))} <b>{number(score)}</b>"
        for name, score in pairs
    )
    advantage = group.advantages[index]
    colour = GOOD if advantage > 0 else BAD if advantage < 0 else MUTED
    total = (
        f"total <b>{number(group.totals[index])}</b>, advantage <b"
        f" style='color:{colour}'>{advantage:+.2f}</b>"
    )
    failed = [coloured(problem, BAD) for place, problem in problems if place == index]
    return f"{total}<br>{scores}{page}{''.join(failed)}"


def highlighted(text: str, matched: Iterable[tuple[int, int]], asked: Iterable[str] = ()) -> str:
    """HTML of a completion: matched parts, by (start, end), in yellow; the marks that the prompt
    asks for underlined.
    """
    text, more = text[:LONGEST_SHOWN], len(text) - LONGEST_SHOWN
    places = range(len(text))
    found = {place for span in matched for place in places[slice(*span)]}
    named = {
        place
        for mark in filter(None, asked)
        for hit in re.finditer(re.escape(mark), text)
        for place in range(*hit.span())
    }
    pieces = []
    for (is_found, is_named), run in itertools.groupby(
        places, lambda place: (place in found, place in named)
    ):
        body = html.escape(plain_text("".join(text[place] for place in run)))
        if is_found:  # white space that was matched would not be seen
            body = f"<mark style='{_MARK}'>{body.replace(chr(10), '↵' + chr(10))}</mark>"
        pieces.append(f"<span style='{_ASKED}'>{body}</span>" if is_named else body)
    tail = f" … ({more} more characters)" if more > 0 else ""
    return f"<pre style='{PRE}'>{''.join(pieces)}{tail}</pre>"
