"""Questions to an exported model, and the answers of base and trained side by side."""

from __future__ import annotations

from typing import Any

from workbench.base.printable import printable
from workbench.base.workspace import shown
from workbench.exporting.chat import ChatAnswer, Exchange
from workbench.views.tables import Table, Verbatim


class Chat:
    """Ask an exported model, with the base that it was trained from beside it. Leave it, or what
    `send` returns, as the last line of a cell.

    >>> chat = wb.chat(exported, "What is 15 + 27?")
    >>> print(chat.send("What is 12 + 13?"))
    ...

    Args:
        artefact, system_prompt, limits: as for `ask`.
        question: the first question; empty: none yet.
        temperature: None: the one that the run sampled at. 0 takes the likeliest token every time.
        base: also ask the base, where it is known. Beside a merged or GGUF artefact it is a second
            model in memory.

    Raises:
        PolicyError, DataError, ExportError: as for `ask`.
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
        if question:
            self.send(question)

    def send(self, question: str) -> Chat:
        """Ask, each question alone; returns the chat, with the answers."""
        ask, temperature = self.asked.answer, self.temperature
        answers = {who: ask(question, temperature, who == "base") for who in self.who}
        self.turns.append((question, answers))
        return self

    @property
    def _title(self) -> str:
        title = f"{shown(self.asked.artefact.path)}; each question is asked alone, as in training"
        if self.temperature > 0:
            title += f"; one sample at temperature {self.temperature:g}: another may differ"
        return title

    def _repr_html_(self) -> str:
        rows = []
        for question, answers in self.turns:
            said = [f"{own.text}\n\n{_end(who, own)}" for who, own in answers.items()]
            rows.append(map(Verbatim, [question, *said]))
        return Table(["question", *self.who], rows, self._title)._repr_html_()

    def __repr__(self) -> str:
        lines = [self._title]
        for question, answers in self.turns:
            said = (f"[{_end(who, own)}]\n{own.text}" for who, own in answers.items())
            lines += ["", question, *said]
        return printable("\n".join(lines))


def _end(who: str, answer: ChatAnswer) -> str:
    return f"{who}: {answer.length_tokens} tokens, {answer.ended}"


chat = Chat  # a name of the face
