"""Questions in a cell: a box, and the answers of base and trained side by side."""

from __future__ import annotations

import asyncio
import contextlib
import html
import signal
from typing import Any

from workbench.exporting.chat import ChatAnswer, Exchange
from workbench.printable import printable
from workbench.views.tables import no_formulas, verbatim
from workbench.views.widgets import Parts, no_widgets, widget_view
from workbench.workspace import shown


class Chat:
    """Ask an exported model, with the base that it was trained from beside it. Leave it as the
    last line of a cell.

    >>> print(wb.chat(exported, "What is 15 + 27?"))
    ...

    While it answers, an Interrupt of the kernel stops it. The saved notebook keeps the answers as
    text.

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
        self.asked = Exchange(artefact, system_prompt, **limits)
        self.temperature = self.asked.temperature if temperature is None else temperature
        both = base and bool(self.asked.artefact.base)
        self.who = ("base", "trained") if both else ("trained",)
        self.turns: list[tuple[str, dict[str, ChatAnswer]]] = []
        self.widget: Any = None
        self._place: Any = None
        self._loop: Any = None
        if not no_widgets():
            import ipywidgets

            parts = Parts()
            self._box = parts.add("question", "Textarea", value=question, rows=3)
            send = parts.add("send", "Button", self._clicked, description="Send")
            self.widget = ipywidgets.VBox([self._box, send])
        elif question:
            self.send(question)

    def _clicked(self) -> None:
        # Some kernels handle clicks on another thread; an Interrupt reaches the main one alone.
        question, self._box.value = self._box.value, ""
        self._loop.call_soon_threadsafe(self._interruptible, question)

    def _interruptible(self, question: str) -> None:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored between cells
        try:
            self.send(question)
        finally:
            signal.signal(signal.SIGINT, before)

    def send(self, question: str) -> None:
        """Ask, and show the answers. An error, or an Interrupt, is shown in place of the answer."""
        answers: dict[str, ChatAnswer] = {}
        self.turns.append((question, answers))
        for who in reversed(self.who):
            answers[who] = ChatAnswer("", 0, "writing …: interrupt the kernel to stop")
            self.look()
            try:
                answers[who] = self.asked.answer(question, self.temperature, who == "base")
            except KeyboardInterrupt:
                answers[who] = ChatAnswer("", 0, "stopped")
                break
            except Exception as error:
                answers[who] = ChatAnswer("", 0, f"failed: {getattr(error, 'value', error)}")
                break
        self.look()

    def look(self) -> None:
        """Show what was asked and answered so far."""
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

    def _bundle(self) -> dict[str, str]:
        cells = []
        for question, answers in self.turns:
            cells += [f"<tr><th colspan=2>{_text(question)}</th></tr><tr>"]
            for who in (who for who in self.who if who in answers):
                end = _text(_end(who, answers[who]))
                cells += [f"<td>{end}{_text(answers[who].text)}</td>"]
            cells += ["</tr>"]
        page = f"{_text(self._title)}<table style='width:100%'>{''.join(cells)}</table>"
        return {"text/html": no_formulas(page), "text/plain": str(self)}

    @property
    def _title(self) -> str:
        title = f"{shown(self.asked.artefact.path)}; each question is asked alone, as in training"
        if self.temperature > 0:
            title += f"; one sample at temperature {self.temperature:g}: another may differ"
        return title

    def __repr__(self) -> str:
        lines = [self._title]
        for question, answers in self.turns:
            said = (f"[{_end(who, one)}]\n{one.text}" for who, one in answers.items())
            lines += ["", question, *said]
        return printable("\n".join(lines))


def _end(who: str, answer: ChatAnswer) -> str:
    return f"{who}: {answer.length_tokens} tokens, {answer.ended}"


def _text(text: str) -> str:
    return verbatim(html.escape(printable(text)))  # however long


chat = Chat  # a name of the face
