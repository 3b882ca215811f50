"""A chat in a cell: base and trained side by side, streaming, stopped at any token; without widgets, one exchange as a table.

Models write in a thread, so that the kernel stays free. What they write is shown from the kernel's own event loop: no thread
touches a widget, and no click a model.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import os
import threading
from typing import Any

from workbench.exporting.chat import BASE, TRAINED, Answer, Conversation, Turn
from workbench.printable import printable
from workbench.views.tables import MUTED, PRE, no_formulas
from workbench.views.widgets import WIDGETS, widget_view
from workbench.workspace import shown

_LOOK_S = 0.15  # between two looks at an answer that is being written


class Chat:
    """Talk to an exported model, with the base that it was trained from beside it. Leave it as the last line of a cell.

    >>> print(wb.chat(exported, "What is 15 + 27?"))
    ...

    The saved notebook keeps the conversation as text.

    Args:
        artefact, system_prompt, limits: as for `ask`.
        question: stands in the box to begin with. Where there are no widgets it is asked at once.
        temperature: to begin with; None: the one that the run sampled at. 0 takes the likeliest token every time.
        base: ask the base, too, where it is known. Beside a merged or GGUF artefact it is a second model in memory.
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
        self.talk, self.question = Conversation(artefact, system_prompt, **limits), question
        self.temperature = self.talk.temperature if temperature is None else temperature
        self.base = base and bool(self.talk.artefact.base)
        self.said, self.widget, self._place, self._shown = "", None, None, {}  # said: why a click did nothing
        self._thread, self._stop, self._task = threading.Thread(), threading.Event(), None
        if os.environ.get(WIDGETS) != "0":
            with contextlib.suppress(ImportError):
                self.widget = self._build()
        if self.widget is None and question:
            self.send()
            self.wait()

    def _build(self) -> Any:
        import ipywidgets as kit

        words, wide = {"description_width": "initial"}, {"width": "98%"}
        self._box = kit.Textarea(value=self.question, rows=3, placeholder="a question", layout=wide)
        self._box.add_class("workbench-question")
        self._system = kit.Textarea(value=self.talk.system_prompt, rows=6, placeholder="no system prompt", layout=wide)
        self._slider = kit.FloatSlider(self.temperature, min=0, max=2, step=0.1, description="temperature", style=words)
        self._both = kit.Checkbox(self.base, description="base beside trained", disabled=not self.talk.artefact.base, style=words)
        buttons = [kit.Button(description=name) for name in ("Send", "Stop", "New")]
        for button, act in zip(buttons, (self.send, self.stop, self.new), strict=True):
            button.on_click(lambda _, act=act: act())
        folded = kit.Accordion([self._system], selected_index=None, layout=wide)
        folded.set_title(0, "system prompt")
        return kit.VBox([self._box, kit.HBox([*buttons, self._slider]), self._both, folded])

    def send(self) -> None:
        """Have the question in the box answered, in a thread; one at a time."""
        if self.widget is not None:
            self.question, self.temperature, self.base = self._box.value, self._slider.value, self._both.value
        self.said = "" if self.question.strip() else "Write a question first."
        if self._thread.is_alive():
            self.said = "An answer is being written: wait for its end, or press Stop."
        if not self.said:
            if self.widget is not None:
                self.talk.system_prompt, self._box.value = self._system.value, ""
            self._stop = threading.Event()
            self._thread = threading.Thread(target=self._write, args=(self.question, self._stop), daemon=True)
            self._thread.start()
            with contextlib.suppress(RuntimeError):  # without an event loop, `wait` shows what was written
                self._task = asyncio.get_running_loop().create_task(self._follow())
        self.look()

    def _write(self, question: str, stop: threading.Event) -> None:
        with contextlib.suppress(Exception):  # the answer says what went wrong
            self.talk.reply(question, self.temperature, self.base, stop=stop)
        self.said = ""

    async def _follow(self) -> None:
        while self._thread.is_alive():
            self.look()
            await asyncio.sleep(_LOOK_S)
        self.look()

    def stop(self) -> None:
        """End the answer that is being written, at the token in flight."""
        self._stop.set()

    def new(self) -> None:
        """Begin a new conversation; an answer that is being written ends."""
        self.stop()
        self.talk.turns, self.said = [], ""
        self.look()

    def wait(self) -> None:
        """Until the answer is written; an Interrupt stops it."""
        try:
            self._thread.join()
        except KeyboardInterrupt:
            self.stop()
            self._thread.join()
        self.look()

    def look(self) -> None:
        """Show what was written since. The panel does it while it is shown."""
        if self._place is not None and (bundle := self._bundle()) != self._shown:
            self._shown = bundle
            self._place.update(bundle, raw=True)

    def _ipython_display_(self) -> None:
        from IPython.display import display

        self._shown = self._bundle()
        self._place = display(self._shown, raw=True, display_id=True)
        if self.widget is not None:
            display({"text/plain": "Run this cell to ask more.", **widget_view(self.widget)}, raw=True)

    @property
    def _title(self) -> str:
        said = shown(self.talk.artefact.path) + "; asked each question alone, as in training" * bool(self.talk.artefact.run)
        sampled = f"; one sample at temperature {self.temperature:g}: another run of this cell may answer otherwise"
        return said + sampled * (self.widget is None and self.temperature > 0)

    def _bundle(self) -> dict[str, str]:
        page = [_small(self._title), *map(_table, list(self.talk.turns)), _small(self.said)]
        return {"text/html": no_formulas("".join(page)), "text/plain": str(self)}

    def __repr__(self) -> str:
        lines = [self._title]
        for turn in list(self.talk.turns):
            lines += ["", turn.question, *(f"[{who}: {end}]\n{text}" for who, text, end in _answers(turn))]
        return printable("\n".join([*lines, self.said]).strip())


def _answers(turn: Turn) -> list[tuple[str, str, str]]:
    # (who wrote, what, how it stands), the base first.
    def how(one: Answer) -> str:
        return f"{one.length_tokens} tokens, {one.ended or 'writing …'}" if one.text or one.ended else "loading …"

    return [(who, one.text, how(one)) for who in (BASE, TRAINED) if (one := turn.answers.get(who))]


def _small(text: str) -> str:
    return f"<div style='color:{MUTED};margin:2px 0;overflow-wrap:anywhere'>{html.escape(printable(text))}</div>"


def _table(turn: Turn) -> str:
    def cell(text: str) -> str:  # in whole, however long
        return f"<pre style='{PRE}'>{html.escape(printable(text))}</pre>"

    style = "text-align:left;vertical-align:top"
    told = (f"<td style='{style}'><b>{who}</b>{cell(text)}{_small(end)}</td>" for who, text, end in _answers(turn))
    row = f"<table style='width:100%;table-layout:fixed'><tr>{''.join(told)}</tr></table>"
    return f"<div style='margin-top:8px;font-weight:bold'>{cell(turn.question)}</div>{row}"


chat = Chat  # a name of the face
