"""A `RewardAudit` for people: what reward hacks earn, the findings, what each function pays, and the best paid probes."""

from __future__ import annotations

import html
from typing import Any

from workbench.audit.examination import RewardAudit
from workbench.views.figure import GREY, SERIES, inline_image, new_figure
from workbench.views.tables import PRE, Table, Verbatim, plain, short_name

_COLOURS = {"error": "#c0392b", "warning": "#b9770e", "note": "#5d6d7e"}
MOST_PROBES = 12
_REMEDY = html.escape("\n  -> ")


class AuditView:
    """The whole audit: HTML in a notebook, text elsewhere.

    Args:
        most: probes in the table and the chart.
        chart: with the chart of what they earn.
    """

    def __init__(self, audit: RewardAudit, most: int = MOST_PROBES, chart: bool = True) -> None:
        self.audit, self.most, self.chart = audit, most, chart and bool(audit.probes)
        self.tables = [table for table in (functions_table(audit), probes_table(audit, most)) if table.rows]

    def __str__(self) -> str:
        head = "\n".join([f"{self.audit.task}: {self.audit.verdict}", _tried(self.audit)])
        found = "\n".join(map(str, self.audit.findings))
        return "\n\n".join(part for part in (head, found, *map(str, self.tables)) if part)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        audit = self.audit
        head = f"<b>{_pre(f'{audit.task}: {audit.verdict}')}</b>{_pre(_tried(audit))}"
        chart = inline_image(leaderboard_chart(audit, self.most), audit.verdict) if self.chart else ""
        lines = "".join(
            f"<li><b style='color:{_COLOURS[finding.severity]}'>{finding.severity}</b> "
            f"{_pre(str(finding).partition(': ')[2].replace(_REMEDY, chr(10) + '→ '))}</li>"
            for finding in audit.findings
        )
        return f"{head}{chart}<ul>{lines}</ul>" + "".join(table._repr_html_() for table in self.tables)


def _pre(text: str) -> str:
    # As tables have it: findings quote completions and answers, and outside of <pre> a `$` would begin a formula.
    return f"<pre style='{PRE}'>{html.escape(plain(text))}</pre>"


def _tried(audit: RewardAudit) -> str:
    prompts = f"{audit.rows} prompt{'s' if audit.rows > 1 else ''}"
    cases = f", {audit.cases} regression case{'s' if audit.cases > 1 else ''}" if audit.cases else ""
    return f"expected format: {audit.format}; {prompts}, {audit.completions} completions{cases}, {audit.seconds:.1f} s"


def functions_table(audit: RewardAudit) -> Table:
    """What each function declares, pays the reference completion, and pays at least and at most of all that were tried."""
    header = ["function", "weight", "declared maximum", "reference", "lowest", "highest", "measured in"]
    rows = [[f.name, f.weight, f.maximum, f.reference, f.lowest, f.highest, f.unit] for f in audit.functions]
    return Table(header, rows, "What each function pays")


def probes_table(audit: RewardAudit, most: int = MOST_PROBES) -> Table:
    """The probes, best paid first."""
    reference = _reference(audit)
    whole = "100%" if any(probe.share is not None for probe in audit.probes) else "-"
    example = Verbatim(_short(audit.reference))
    rows = [["(the reference completion)", audit.reference_total, whole, *reference.values(), example]]
    for probe in audit.probes[:most]:
        share = "-" if probe.share is None else f"{probe.share:.0%}"
        name = probe.name + (" (yours)" if probe.own else "") + (" (right, padded)" if probe.right else "")
        scores = [probe.scores[each] for each in reference]
        rows.append([Verbatim(name), probe.total, share, *scores, Verbatim(_short(probe.example))])
    more = len(audit.probes) - most
    caption = "What reward hacks earn, against the reference completion" + (
        f" ({more} more earn less)" if more > 0 else ""
    )
    header = ["completion", "earns", "share", *map(short_name, reference), "for example"]
    return Table(header, rows if audit.probes else [], caption)


def _reference(audit: RewardAudit) -> dict[str, float | None]:
    # What the reference earns, of the functions that could score.
    scored = audit.probes[0].scores if audit.probes else {}
    return {function.name: function.reference for function in audit.functions if function.name in scored}


def _short(text: str, most: int = 60) -> str:
    text = text.replace("\n", "⏎")
    return text if len(text) <= most else f"{text[:most]}…"


def leaderboard_chart(audit: RewardAudit, most: int = MOST_PROBES) -> Any:
    """What the reference completion and the best paid probes earn, by function: a bar each, with the reference as a line."""
    reference, weights = _reference(audit), {function.name: function.weight for function in audit.functions}
    bars = [("the reference completion", reference)] + [(probe.name, probe.scores) for probe in audit.probes[:most]]
    figure, axis = new_figure(8, 0.6 + 0.24 * len(bars))
    for place, (_, scores) in enumerate(bars):
        right, left = 0.0, 0.0  # negative scores go to the left
        for index, name in enumerate(reference):
            value = scores[name]
            value = 0.0 if value is None or value != value else value * weights[name]
            start = right if value >= 0 else left
            axis.barh(place, value, left=start, color=SERIES[index % len(SERIES)], label=name if not place else None)
            right, left = (right + value, left) if value >= 0 else (right, left + value)
    axis.axvline(audit.reference_total, color=GREY, linestyle="--", linewidth=1)
    axis.set_yticks(range(len(bars)), [label for label, _ in bars], fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel("weighted reward", fontsize=8)
    axis.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.tight_layout()
    return figure
