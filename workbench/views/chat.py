"""A chat in a cell: a box for the question, and the answers of base and trained side by side."""

from __future__ import annotations

import asyncio
import contextlib
import html
import os
import signal
from typing import Any

from workbench.exporting.chat import BASE, TRAINED, Conversation, Turn
from workbench.printable import printable
from workbench.views.tables import MUTED, PRE, no_formulas
from workbench.views.widgets import WIDGETS, widget_view
from workbench.workspace import shown


class Chat:
    """Talk to an exported model, with the base that it was trained from beside it. Leave it as the
    last line of a cell.

    >>> print(wb.chat(exported, "What is 15 + 27?"))
    ...

    While it answers, an Interrupt of the kernel stops it. The saved notebook keeps the conversation
    as text.

    Args:
        artefact, system_prompt, limits: as for `ask`.
        question: the box's first text. Where there are no widgets it is asked at once.
        temperature: None: the one that the run sampled at. 0 takes the likeliest token every time.
        base: also ask the base, where it is known. Beside a merged or GGUF artefact it is a second
            model in memory.
    """

    def __init__(
        self,
        artefact: Any,
        question: str = "",
        system_prompt: str | None = None,
        *,
        temperature: float | None = None,
        base: bool = True,
        **limits: Any,
    ) -> None:
        self.talk = Conversation(artefact, system_prompt, **limits)
        self.temperature = self.talk.temperature if temperature is None else temperature
        self.base = base and bool(self.talk.artefact.base)
        self.said = ""  # why there is no answer
        self.widget: Any = None
        self._place: Any = None
        self._loop: Any = None
        if os.environ.get(WIDGETS) != "0":
            with contextlib.suppress(ImportError):
                self.widget = self._build(question)
        if self.widget is None and question:
            self.send(question)

    def _build(self, question: str) -> Any:
        import ipywidgets as kit

        self._box = kit.Textarea(
            value=question, rows=3, placeholder="a question", layout={"width": "98%"}
        )
        self._box.add_class("workbench-question")
        button = kit.Button(description="Send")
        button.on_click(self._clicked)
        return kit.VBox([self._box, button])

    def _clicked(self, _: object) -> None:
        # Some kernels handle clicks on another thread; an Interrupt reaches the main one alone,
        # where the cell was run.
        question, self._box.value = self._box.value, ""
        self._loop.call_soon_threadsafe(self._answer, question)

    def _answer(self, question: str) -> None:
        # between cells a kernel ignores it
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with contextlib.suppress(KeyboardInterrupt):
                self.send(question)
        finally:
            signal.signal(signal.SIGINT, before)

    def send(self, question: str) -> None:
        """Ask, and show the answers. An error, or an Interrupt, is shown in place of the answer."""
        self.said = (
            "Writing …: interrupt the kernel to stop."
            if question.strip()
            else "Write a question first."
        )
        self.look()
        if question.strip():
            # the answer says what went wrong
            with contextlib.suppress(Exception, KeyboardInterrupt):
                self.talk.reply(question, self.temperature, self.base)
            self.said = ""
            self.look()

    def look(self) -> None:
        """Show the conversation as it is now."""
        if self._place is not None:
            self._place.update(self._bundle(), raw=True)

    def _ipython_display_(self) -> None:
        from IPython.display import display

        self._place = display(self._bundle(), raw=True, display_id=True)
        if self.widget is not None:
            with contextlib.suppress(RuntimeError):  # a terminal, where nobody clicks
                self._loop = asyncio.get_running_loop()
            display(
                {"text/plain": "Run this cell to ask more.", **widget_view(self.widget)}, raw=True
            )

    @property
    def _title(self) -> str:
        title = shown(self.talk.artefact.path)
        if self.talk.artefact.run:
            title += "; asked each question alone, as in training"
        if self.temperature > 0:
            title += (
                f"; one sample at temperature {self.temperature:g}: another run of this cell may"
                " answer differently"
            )
        return title

    def _bundle(self) -> dict[str, str]:
        page = [_small(self._title), *map(_table, self.talk.turns), _small(self.said)]
        return {"text/html": no_formulas("".join(page)), "text/plain": str(self)}

    def __repr__(self) -> str:
        lines = [self._title]
        for turn in self.talk.turns:
            lines += [
                "",
                turn.question,
                *(f"[{who}: {end}]\n{text}" for who, text, end in _answers(turn)),
            ]
        return printable("\n".join([*lines, self.said]).strip())


def _answers(turn: Turn) -> list[tuple[str, str, str]]:
    # (who wrote, what, how it ended), the base first.
    written = [(who, turn.answers[who]) for who in (BASE, TRAINED) if who in turn.answers]
    return [
        (who, one.text, f"{one.length_tokens} tokens, {one.ended or 'writing …'}")
        for who, one in written
    ]


def _small(text: str) -> str:
    return (
        f"<div style='color:{MUTED};margin:2px"
        f" 0;overflow-wrap:anywhere'>{html.escape(printable(text))}</div>"
    )


def _table(turn: Turn) -> str:
    def cell(text: str) -> str:  # in whole, however long
        return f"<pre style='{PRE}'>{html.escape(printable(text))}</pre>"

    style = "text-align:left;vertical-align:top"
    told = (
        f"<td style='{style}'><b>{who}</b>{cell(text)}{_small(end)}</td>"
        for who, text, end in _answers(turn)
    )
    row = f"<table style='width:100%;table-layout:fixed'><tr>{''.join(told)}</tr></table>"
    return f"<div style='margin-top:8px;font-weight:bold'>{cell(turn.question)}</div>{row}"


chat = Chat  # a name of the face
