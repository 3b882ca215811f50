"""The template card as a page: the exact text, its special tokens marked, and what to worry about."""

from __future__ import annotations

import html
from typing import Any

from workbench.views.tables import Table, plain, pre

_TEXT = "white-space:pre-wrap;font-family:monospace;border-left:3px solid #888;padding-left:8px"
_SPECIAL = "background:#f3d9a4;color:#222;border-radius:3px;padding:0 2px"


class CardView:
    """Shows a `workbench.data.template.TemplateCard`: HTML in a notebook, text elsewhere."""

    def __init__(self, card: Any) -> None:
        self.card = card

    def _rows(self) -> list[list[str]]:
        card = self.card
        survive = [tag for tag, survives in card.survives.items() if survives]
        lost = [tag for tag, survives in card.survives.items() if not survives]
        tags = " ".join(survive) + (f"; LOST: {' '.join(lost)}" if lost else "")
        said = {True: "yes", False: "NO", None: "-"}
        return [
            ["tokens", str(len(card.tokens))],
            ["special tokens", " ".join(dict.fromkeys(t.text for t in card.tokens if t.special)) or "none"],
            ["tags that survive decoding", tags or "none asked for"],
            ["EOS token", str(card.eos_token)],
            ["the template ends the assistant's turn with it", said[card.ends_turns]],
            ["tag that the template opens by itself", f"<{card.prefilled}>" if card.prefilled else "none"],
            ["the system message is in the text", said[card.keeps_system]],
        ]

    def _repr_html_(self) -> str:
        parts = []
        for token in self.card.tokens:
            text = html.escape(plain(token.text), quote=True)
            parts.append(f"<span style='{_SPECIAL}'>{text}</span>" if token.special else text)
        text = f"<pre style='{_TEXT}'>{''.join(parts)}</pre>"
        worries = "".join(f"<li>{pre(problem)}</li>" for problem in self.card.problems)
        table = Table(["what a trainer makes of it", ""], self._rows())._repr_html_()
        return (
            text
            + table
            + (f"<p><b>Check this:</b></p><ul>{worries}</ul>" if worries else "<p>Nothing to worry about.</p>")
        )

    def __str__(self) -> str:
        worries = [plain(f"look: {problem}") for problem in self.card.problems] or ["nothing to worry about"]
        return "\n".join(
            [plain(self.card.text), "", str(Table(["what a trainer makes of it", ""], self._rows())), *worries]
        )

    __repr__ = __str__
