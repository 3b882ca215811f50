"""A chat in a cell: a box for the question, and the answers of base and trained side by side."""

from __future__ import annotations

import asyncio
import contextlib
import html
import signal
from typing import Any

from workbench.exporting.chat import BASE, TRAINED, ChatAnswer, Conversation, Exchange
from workbench.kinds import Fields
from workbench.printable import printable
from workbench.views.look import MUTED
from workbench.views.tables import no_formulas, verbatim
from workbench.views.turns import transcript, turn_text
from workbench.views.widgets import Parts, no_widgets, widget_view
from workbench.workspace import shown

_WITH_TOOLS = "; as a rollout, with the tools of its task"


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
        if not no_widgets():
            self.widget = self._build(question)
        elif question:
            self.send(question)

    def _build(self, question: str) -> Any:
        import ipywidgets as kit

        parts = Parts()
        look: Fields = {"rows": 3, "placeholder": "a question", "layout": {"width": "98%"}}
        self._box = parts.add("question", "Textarea", value=question, **look)
        return kit.VBox([self._box, parts.add("send", "Button", self._clicked, description="Send")])

    def _clicked(self) -> None:
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
        if not question.strip():
            self.said = "Write a question first."
            return self.look()
        self.said = "Writing …: interrupt the kernel to stop."
        self.look()
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
            if self.talk.artefact.run.manifest().get("turns"):
                why = self.talk.unanswered
                title += f"; a call that it writes is not answered: {why}" if why else _WITH_TOOLS
        if self.temperature > 0:
            title += f"; one sample at temperature {self.temperature:g}: another run of this cell"
            title += " may answer differently"
        return title

    def _bundle(self) -> dict[str, str]:
        page = [_small(self._title), *map(_table, self.talk.turns), _small(self.said)]
        return {"text/html": no_formulas("".join(page)), "text/plain": str(self)}

    def __repr__(self) -> str:
        lines = [self._title]
        for turn in self.talk.turns:
            lines += ["", turn.question]
            lines += [f"[{who}: {end}]\n{answer_text(one)}" for who, one, end in _answers(turn)]
        return printable("\n".join([*lines, self.said]).strip())


def answer_text(answer: ChatAnswer) -> str:
    """What was written; of a rollout each turn, in a line."""
    return "\n".join(map(turn_text, answer.turns)) if answer.turns else answer.text


def _answers(turn: Exchange) -> list[tuple[str, ChatAnswer, str]]:
    # (who wrote, what, how it ended), the base first.
    return [
        (who, one, f"{one.length_tokens} tokens, {one.ended or 'writing …'}")
        for who in (BASE, TRAINED)
        if (one := turn.answers.get(who)) is not None
    ]


def _whole(text: str) -> str:
    return verbatim(html.escape(printable(text)))  # however long


def _written(answer: ChatAnswer) -> str:
    return verbatim(transcript(answer.turns).page) if answer.turns else _whole(answer.text)


def _small(text: str) -> str:
    style = f"color:{MUTED};margin:2px 0;overflow-wrap:anywhere"
    return f"<div style='{style}'>{html.escape(printable(text))}</div>"


def _table(turn: Exchange) -> str:
    style = "text-align:left;vertical-align:top"
    cells = [
        f"<td style='{style}'><b>{who}</b>{_written(one)}{_small(end)}</td>"
        for who, one, end in _answers(turn)
    ]
    row = f"<table style='width:100%;table-layout:fixed'><tr>{''.join(cells)}</tr></table>"
    return f"<div style='margin-top:8px;font-weight:bold'>{_whole(turn.question)}</div>{row}"


chat = Chat  # a name of the face
