"""What `audit_rewards` found, for people: the findings first, then what each function pays, then the cheats by what they earn."""

from __future__ import annotations

import html
from typing import Any

from workbench.audit.examination import RewardAudit
from workbench.views.figure import GREY, SERIES, new_figure
from workbench.views.tables import PRE, Table, Verbatim, plain, short_name

_COLOURS = {"error": "#c0392b", "warning": "#b9770e", "note": "#5d6d7e"}
MOST_CHEATS = 12
_REMEDY = html.escape("\n  -> ")


class Report:
    """The whole examination: HTML in a notebook, text elsewhere."""

    def __init__(self, found: RewardAudit, cheats: int = MOST_CHEATS) -> None:
        self.found, self.parts = found, [functions_table(found), cheats_table(found, cheats)]

    def __str__(self) -> str:
        found = self.found
        head = [f"{found.task}: {found.verdict}", _tried(found)]
        tables = [str(part) for part in self.parts if part.rows]
        return "\n\n".join(["\n".join(head), "\n".join(map(str, found.findings)), *tables]).replace("\n\n\n\n", "\n\n")

    __repr__ = __str__

    def _repr_html_(self) -> str:
        found = self.found
        head = f"<b>{_pre(f'{found.task}: {found.verdict}')}</b>{_pre(_tried(found))}"
        lines = "".join(
            f"<li><b style='color:{_COLOURS[finding.severity]}'>{finding.severity}</b> "
            f"{_pre(str(finding).partition(': ')[2].replace(_REMEDY, chr(10) + '→ '))}</li>"
            for finding in found.findings
        )
        return f"{head}<ul>{lines}</ul>" + "".join(part._repr_html_() for part in self.parts if part.rows)


def _pre(text: str) -> str:
    # As tables have it: findings quote completions and answers, and outside of <pre> a `$` would begin a formula.
    return f"<pre style='{PRE}'>{html.escape(plain(text))}</pre>"


def _tried(found: RewardAudit) -> str:
    prompts = f"{found.rows} prompt{'s' if found.rows > 1 else ''}"
    cases = f", {found.cases} golden case{'s' if found.cases > 1 else ''}" if found.cases else ""
    return f"asked for: {found.asked}; {prompts}, {found.completions} completions{cases}, {found.seconds:.1f} s"


def functions_table(found: RewardAudit) -> Table:
    """What each function declares, pays an honest completion, and pays at least and at most of all that were tried."""
    rows = [
        [
            function.name,
            function.weight,
            function.maximum,
            function.honest,
            function.lowest,
            function.highest,
            function.unit,
        ]
        for function in found.functions
    ]
    header = ["function", "weight", "declared maximum", "honest answer", "lowest", "highest", "measured in"]
    return Table(header, rows, "What each function pays")


def cheats_table(found: RewardAudit, most: int = MOST_CHEATS) -> Table:
    """The cheats, best paid first."""
    names = [function.name for function in found.functions if found.probes and function.name in found.probes[0].scores]
    whole = "100%" if any(cheat.share is not None for cheat in found.probes) else "-"
    rows = [["(an honest answer)", found.honest_total, whole, *_honest(found, names), Verbatim(_short(found.honest))]]
    for cheat in found.probes[:most]:
        share = "-" if cheat.share is None else f"{cheat.share:.0%}"
        name = cheat.name + (" (yours)" if cheat.own else "") + (" (right, padded)" if cheat.right else "")
        rows.append(
            [
                Verbatim(name),
                cheat.total,
                share,
                *(cheat.scores[each] for each in names),
                Verbatim(_short(cheat.example)),
            ]
        )
    more = len(found.probes) - most
    caption = "What cheats earn, of an honest answer" + (f" ({more} more earn less)" if more > 0 else "")
    short = [short_name(name) for name in names]
    return Table(["completion", "earns", "share", *short, "for example"], rows if found.probes else [], caption)


def _honest(found: RewardAudit, names: list[str]) -> list[float | None]:
    by_name = {function.name: function.honest for function in found.functions}
    return [by_name[name] for name in names]


def _short(text: str, most: int = 60) -> str:
    text = text.replace("\n", "⏎")
    return text if len(text) <= most else f"{text[:most]}…"


def leaderboard_chart(found: RewardAudit, most: int = MOST_CHEATS) -> Any:
    """What an honest answer and the best cheats earn, by function: a bar each, with the honest total as a line."""
    names = list(found.probes[0].scores) if found.probes else []
    weights = {function.name: function.weight for function in found.functions}
    honest = dict(zip(names, _honest(found, names), strict=True))
    bars = [("an honest answer", honest)] + [(cheat.name, cheat.scores) for cheat in found.probes[:most]]
    figure, axis = new_figure(8, 0.6 + 0.24 * len(bars))
    for place, (_, scores) in enumerate(bars):
        right, left = 0.0, 0.0  # negative scores go to the left
        for index, name in enumerate(names):
            value = scores[name]
            value = 0.0 if value is None or value != value else value * weights[name]
            start = right if value >= 0 else left
            axis.barh(place, value, left=start, color=SERIES[index % len(SERIES)], label=name if not place else None)
            right, left = (right + value, left) if value >= 0 else (right, left + value)
    axis.axvline(found.honest_total, color=GREY, linestyle="--", linewidth=1)
    axis.set_yticks(range(len(bars)), [label for label, _ in bars], fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel("weighted reward", fontsize=8)
    axis.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.tight_layout()
    return figure
