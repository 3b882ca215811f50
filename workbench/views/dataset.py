"""The results of notebook 01 as tables and pictures: rows, the template's text, prompt lengths, difficulty."""

from __future__ import annotations

import html
from typing import Any

from workbench.views.figure import BLUE, GREEN, ORANGE, RED, Picture, new_figure, whole_numbers, with_legend
from workbench.views.tables import Table, Verbatim, View, plain, pre

_TEXT = "white-space:pre-wrap;font-family:monospace;border-left:3px solid #888;padding-left:8px"
_SPECIAL = "background:#f3d9a4;color:#222;border-radius:3px;padding:0 2px"


def rows_table(rows: Any) -> Table:
    """The first rows of a source, every column that one of them has."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[Verbatim(value) if isinstance(value := row.get(name), str) else value for name in names] for row in rows]
    return Table(names, cells, f"the first rows of {rows.name}")


def lengths_picture(lengths: Any) -> Picture:
    """`PromptLengths` as a histogram, with the limits that cover most prompts, and what the filter leaves out shaded."""
    figure, axis = new_figure(8, 2.6)
    shortest, longest, most = min(lengths.lengths), max(lengths.lengths), lengths.max_tokens
    bins = [edge - 0.5 for edge in range(shortest, longest + 2)] if longest - shortest < 60 else 60
    axis.hist(lengths.lengths, bins=bins, color=BLUE)
    by_limit: dict[int, list[str]] = {}
    for share, limit in sorted(lengths.covering.items()):
        by_limit.setdefault(limit, []).append(f"{share:.0%}")
    for (limit, shares), style in zip(by_limit.items(), (":", "--", "-"), strict=False):
        axis.axvline(limit, color=ORANGE, linestyle=style, label=f"at most {limit} tokens: {' and '.join(shares)} of the prompts")
    if most is not None and most < longest:
        axis.axvspan(most + 0.5, longest + 0.5, color=RED, alpha=0.15, label="left out")
    whole_numbers(axis)
    axis.set_xlabel("prompt length, tokens", fontsize=8)
    axis.set_ylabel("rows", fontsize=8)
    return Picture(with_legend(figure, axis), str(lengths))


def difficulty_picture(profile: Any) -> Any:
    """A difficulty `Profile` as bars: prompts by number of right completions; never, sometimes and always coloured."""
    if not profile.solved:
        return Table(["difficulty"], [[str(profile)]])
    size, most = profile.settings["num_generations"], max(solved.of for solved in profile.solved.values())
    right = [round(solved.rate * most) for solved in profile.solved.values()]
    figure, axis = new_figure(8, 2.6)
    kinds = {"never": ([0], ORANGE), "sometimes": (range(1, most), BLUE), "always": ([most], GREEN)}
    for which, (places, colour) in kinds.items():
        label = f"{which} solved: {profile.shares[which]:.0%}"
        axis.bar(places, [right.count(place) for place in places], color=colour, width=0.85, label=label)
    whole_numbers(axis)
    axis.set_xlabel(f"right completions of {most}", fontsize=8)
    axis.set_ylabel("prompts", fontsize=8)
    title = f"about {profile.dead_groups(size):.0%} of groups of {size} would be all right or all wrong"
    axis.set_title(title, fontsize=9, loc="left")
    return Picture(with_legend(figure, axis), str(profile))


def card_view(card: Any) -> View:
    """A `TemplateCard`: the exact text with its special tokens marked, what a trainer makes of it, and what to worry about."""
    survive, lost = (" ".join(tag for tag, survives in card.survives.items() if survives == own) for own in (True, False))
    words = {True: "yes", False: "NO", None: "-"}
    rows = [
        ["tokens", str(len(card.tokens))],
        ["special tokens", " ".join(dict.fromkeys(token.text for token in card.tokens if token.special)) or "none"],
        ["tags that survive decoding", (survive + (f"; LOST: {lost}" if lost else "")) or "none expected"],
        ["EOS token", str(card.eos_token)],
        ["the template ends the assistant's turn with it", words[card.ends_turns]],
        ["tag opened by the template itself", f"<{card.prefilled}>" if card.prefilled else "none"],
        ["the system message is in the text", words[card.keeps_system]],
    ]
    table = Table(["what a trainer makes of it", ""], rows)
    marks = {True: f"<span style='{_SPECIAL}'>{{}}</span>", False: "{}"}
    marked = "".join(marks[bool(token.special)].format(html.escape(plain(token.text))) for token in card.tokens)
    verdict, worries = "<p>Nothing to worry about.</p>", ["nothing to worry about"]
    if card.problems:
        verdict = f"<p><b>Check this:</b></p><ul>{''.join(f'<li>{pre(problem)}</li>' for problem in card.problems)}</ul>"
        worries = [plain(f"check: {problem}") for problem in card.problems]
    text = "\n".join([plain(card.text), "", str(table), *worries])
    return View(f"<pre style='{_TEXT}'>{marked}</pre>{table._repr_html_()}{verdict}", text)
