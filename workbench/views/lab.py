"""The lab: a group of completions scored while one types, beside the scores of reward hacks;
without widgets, as tables.

A task that came from a file is loaded again whenever the file is saved. Everything runs between
cells, on the kernel's own event loop: no thread touches a widget, which some front ends forbid.
While a cell runs, the panel waits.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from workbench.audit.prompt_format import parse_format
from workbench.base.errors import RecipeError, TaskError, WorkbenchError
from workbench.base.workspace import shown
from workbench.data.prompts import question
from workbench.rewards.groups import SCALES, ExplainedGroup
from workbench.task import Row, Task
from workbench.views.bench import Bench
from workbench.views.groups import group_tables, messages_of
from workbench.views.look import BAD, MARKED, MUTED, SKY
from workbench.views.tables import (
    LONGEST_SHOWN,
    View,
    as_html,
    coloured,
    joined,
    number,
    one_line,
    plain_text,
    pre,
    short_name,
    signed,
    typed,
    verbatim,
)
from workbench.views.widgets import Parts, keep_looking, no_widgets, widget_view

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
_UNDERLINED = f"border-bottom:2px solid {SKY}"
_WIDE, _HALF = {"width": "98%"}, {"width": "50%"}
_LEFT = {"width": "auto", "align_self": "flex-start"}
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
        self._pending: asyncio.TimerHandle | None = None
        self._watching: asyncio.Task | None = None
        self.widget = None if no_widgets() else self._build()

    @property
    def row(self) -> Row:
        """The prompt that is shown, as the task's row."""
        return self.bench.task.rows[self.number]

    def __repr__(self) -> str:
        return self._static()["text/plain"]

    def _static(self) -> dict[str, str]:
        asked = question(self.row["prompt"]).strip()
        *tables, report = self.bench.tables(self.row, self.texts)
        words = View(typed(asked), plain_text(asked))
        audit = View(_fold(report), str(report))
        view = joined([words, *tables, audit])
        return {"text/html": view.html, "text/plain": view.text}

    def _repr_mimebundle_(self, **_: object) -> object:
        # The tables go along for readers of the saved notebook, where no kernel answers the
        # widgets.
        if self.widget is None:
            return self._static()
        if self.file is not None and self._watching is None:
            self._watching = keep_looking(self._look, _LOOK_S, self._failed)
            if before := _OPEN.pop(str(self.file), None):
                before.cancel()
            if self._watching is not None:
                _OPEN[str(self.file)] = self._watching
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
        import ipywidgets as kit

        add = self.parts.add
        above = [add("prompts", "Dropdown", self._choose, description="prompt", layout=_WIDE)]
        above += [add(name, "HTML", layout=_WIDE) for name in ("prompt", "status")]
        above.append(add("completions", "VBox", layout=_WIDE))
        scales = {"options": SCALES, "value": self.bench.scale_rewards}
        scale = add("scale", "Dropdown", self._scale, description="scale_rewards", **scales)
        below = [add(name, "HTML", layout=_WIDE) for name in ("verdict", "scores", "report")]
        self._offer()
        self._fill()
        self.refresh(everything=True)
        return kit.VBox([*above, scale, *below])

    def _offer(self) -> None:
        # The prompts of the task, to choose from.
        rows = self.bench.task.rows
        numbers = sorted({*range(min(len(rows), MOST_PROMPTS)), self.number})
        prompts = self.parts["prompts"]
        with self.parts.quietly():
            prompts.options = [
                (one_line(f"{number}: {question(rows[number]['prompt']).strip()}", 84), number)
                for number in numbers
            ]
            prompts.value = self.number

    def _fill(self) -> None:
        # One line per completion: what is typed, and what is found in it.
        import ipywidgets as kit

        add = self.parts.add
        starters = self.bench.starters(self.number)
        options = [("(choose a completion)", ""), *((one_line(own, 80), own) for own in starters)]
        typing = {"placeholder": "type a completion", "layout": {**_WIDE, "height": "9em"}}
        lines = []
        for index, text in enumerate(self.texts):

            def put(name: str, index: int = index) -> None:
                if name:
                    self.type(index, starters[name])

            choice = {"description": str(index), "options": options, "layout": _WIDE}
            then = partial(self._typed, index)
            left = [
                add(f"starter-{index}", "Dropdown", put, **choice),
                add(f"completion-{index}", "Textarea", then, value=text, rows=6, **typing),
            ]
            seen = add(f"seen-{index}", "HTML", layout=_HALF)
            lines.append(kit.HBox([kit.VBox(left, layout=_HALF), seen]))
        more = add("add", "Button", self.add, description="one more completion", layout=_LEFT)
        self.parts["completions"].children = [*lines, more]

    def _typed(self, index: int, text: str) -> None:
        self.texts[index] = text
        self._soon()

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

    def _choose(self, prompt: int) -> None:
        # Completions that were not touched follow the prompt; what was typed stays.
        before = {text: name for name, text in self.bench.starters(self.number).items()}
        self.number = prompt
        after = self.bench.starters(prompt)
        self.texts = [after.get(before.get(text, ""), text) for text in self.texts]
        self._fill()
        self.refresh(everything=True)

    def _scale(self, scale: str) -> None:
        self.bench.scale_rewards = scale
        self.refresh()

    def _soon(self) -> None:
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
            self.parts["verdict"].value = coloured(_named(error), BAD)

    def _show_prompt(self) -> None:
        writer = self.bench.writer(self.number)
        messages = messages_of(self.row["prompt"])
        prompt = "\n\n".join(f"[{role}]\n{text}" if role else text for role, text in messages)
        answer = f"<b>right answer</b>{typed(writer.answer)}" if writer.has_answer else ""
        self.parts["prompt"].value = typed(prompt) + answer

    def _show_scores(self) -> None:
        started = time.perf_counter()
        unseen: dict[str, None] = {}  # functions that paid for something that cannot be shown
        if self.texts:
            group, problems = self.bench.group(self.row, self.texts)
            blocks = parse_format(self.row).blocks
            tags = [tag for block in blocks for tag in (block.opening, block.closing)]
            for index, text in enumerate(self.texts):
                spans: set[tuple[int, int]] = set()
                for name, score in zip(group.names, group.scores[index], strict=True):
                    matched = self.bench.matched(self.row, text, name)
                    spans |= matched
                    if score > 0 and not matched:
                        unseen[short_name(name)] = None
                failed = [coloured(what, BAD) for place, what in problems if place == index]
                page = _scores_line(group, index) + highlighted(text, spans, tags)
                self.parts[f"seen-{index}"].value = "".join([page, *failed])
            said = self.bench.not_scored
            self.parts["verdict"].value = f"<b>{pre(said or group.verdict)}</b>"
            tables = group_tables(group, completions=False)[: 1 if said else 2]
            self.parts["scores"].value = "".join(table._repr_html_() for table in tables)
        self.parts["status"].value = self._status(unseen, time.perf_counter() - started)

    def _status(self, unseen: Iterable[str], seconds: float) -> str:
        if self.problem:
            stays = "The last task that could be loaded is still shown."
            return coloured(f"{self.problem}\n{stays}", BAD)
        names = ", ".join(unseen)
        blind = f" (cannot see what {names} matched)" if names else ""
        file = f"{shown(self.file)}, reloaded when saved; " if self.file is not None else ""
        return coloured(
            f"yellow: what a function matched{blind}; underlined: what the prompt asks for."
            f" {file}reward hash {self.bench.suite.hash}; scored in {1000 * seconds:.0f} ms",
            MUTED,
        )

    # --- the task file
    # ------------------------------------------------------------------------------------------

    async def _look(self) -> bool:
        self.look()
        return False  # a file can always be saved again

    def _failed(self, error: Exception) -> None:
        self.parts["status"].value = coloured(_named(error), BAD)

    def _saved(self) -> tuple[int, int] | None:
        if self.file is None or not self.file.exists():  # not at the moment, or not at all
            return None
        stat = self.file.stat()
        return stat.st_mtime_ns, stat.st_size

    def look(self) -> None:
        """Reload the task if its file was saved; if that fails, the last good one stays. The panel
        does this itself.
        """
        stamp = self._saved()
        if self.file is None or stamp in (None, self._stamp):
            return
        self._stamp = stamp
        try:
            fresh = Bench(self.file, self.bench.scale_rewards)
        except (Exception, SystemExit) as error:  # anything may be written there: the panel stays
            self.problem = _named(error)
        else:
            self.bench.suite.close()
            self.bench, self.problem = fresh, ""
            self.number = min(self.number, len(fresh.task.rows) - 1)
            self._offer()
        self.refresh(everything=True)


def _fold(report: Any) -> str:
    # Opened by a click, so that nobody reads a flaw before having looked for it.
    head = "<summary>what the audit finds in these rewards</summary>"
    return f"<details>{head}{report._repr_html_()}</details>"


def _named(error: BaseException) -> str:
    return str(error) if isinstance(error, WorkbenchError) else f"{type(error).__name__}: {error}"


def _scores_line(group: ExplainedGroup, index: int) -> str:
    columns = zip(group.names, group.scores[index], group.weights, strict=True)
    scores = ", ".join(
        f"{as_html(short_name(name))} <b>{number(score)}</b>"
        + (f" × {weight:g}" if weight != 1 else "")
        for name, score, weight in columns
    )
    advantage = group.advantages[index]
    style = f"color:{signed(advantage, MUTED)}"
    total = f"total <b>{number(group.totals[index])}</b>"
    line = f"{total}, advantage <b style='{style}'>{advantage:+.2f}</b><br>{scores}"
    return f"<div style='line-height:1.4'>{line}</div>"


def highlighted(text: str, matched: Iterable[tuple[int, int]], tags: Iterable[str] = ()) -> str:
    """HTML of a completion: matched parts, by (start, end), in yellow; the tags that the prompt
    asks for underlined.
    """
    text, more = text[:LONGEST_SHOWN], len(text) - LONGEST_SHOWN
    yellow = {place for span in matched for place in range(*span)}
    hits = [hit.span() for tag in tags if tag for hit in re.finditer(re.escape(tag), text)]
    underlined = {place for span in hits for place in range(*span)}

    def marks(place: int) -> tuple[bool, bool]:
        return place in yellow, place in underlined

    pieces = []
    for (is_yellow, is_underlined), places in itertools.groupby(range(len(text)), marks):
        body = as_html("".join(text[place] for place in places))
        if is_yellow:  # white space that was matched would not be seen
            body = f"<mark style='{MARKED}'>{body.replace(chr(10), '↵' + chr(10))}</mark>"
        pieces.append(f"<span style='{_UNDERLINED}'>{body}</span>" if is_underlined else body)
    tail = f" … ({more} more characters)" if more > 0 else ""
    return verbatim("".join(pieces) + tail)
