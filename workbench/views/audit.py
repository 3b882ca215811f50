"""A `RewardAudit` for people: what reward hacks earn, the findings, what each function pays, and the best paid probes."""

from __future__ import annotations

from typing import Any

from workbench.audit.examination import RewardAudit
from workbench.views.figure import GREY, SERIES, inline_image, new_figure, with_legend
from workbench.views.tables import BAD, MUTED, WARNING, Table, Verbatim, View, one_line, pre, short_name

_COLOURS = {"error": BAD, "warning": WARNING, "note": MUTED}
MOST_PROBES = 12
_REMEDY = "\n  -> "


def audit_view(audit: RewardAudit, most: int = MOST_PROBES, chart: bool = True) -> View:
    """The whole audit.

    Args:
        most: probes in the table and the chart.
        chart: with the chart of what they earn.
    """
    tables = [table for table in (functions_table(audit), probes_table(audit, most)) if table.rows]
    title, tried, found = f"{audit.task}: {audit.verdict}", _tried(audit), "\n".join(map(str, audit.findings))
    text = "\n\n".join(part for part in (f"{title}\n{tried}", found, *map(str, tables)) if part)
    image = inline_image(leaderboard_chart(audit, most), audit.verdict) if chart and audit.probes else ""
    lines = "".join(
        f"<li><b style='color:{_COLOURS[finding.severity]}'>{finding.severity}</b> "
        f"{pre(str(finding).partition(': ')[2].replace(_REMEDY, chr(10) + '→ '))}</li>"
        for finding in audit.findings
    )
    head = f"<b>{pre(title)}</b>{pre(tried)}{image}<ul>{lines}</ul>"
    return View(head + "".join(table._repr_html_() for table in tables), text)


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
    example = Verbatim(one_line(audit.reference, 60))
    rows = [["(the reference completion)", audit.reference_total, whole, *reference.values(), example]]
    for probe in audit.probes[:most]:
        share = "-" if probe.share is None else f"{probe.share:.0%}"
        name = probe.name + (" (yours)" if probe.own else "") + (" (right, padded)" if probe.right else "")
        scores = [probe.scores[each] for each in reference]
        rows.append([Verbatim(name), probe.total, share, *scores, Verbatim(one_line(probe.example, 60))])
    more = len(audit.probes) - most
    caption = "What reward hacks earn, against the reference completion" + (f" ({more} more earn less)" if more > 0 else "")
    header = ["completion", "earns", "share", *map(short_name, reference), "for example"]
    return Table(header, rows if audit.probes else [], caption)


def _reference(audit: RewardAudit) -> dict[str, float | None]:
    # What the reference earns, of the functions that could score.
    scored = audit.probes[0].scores if audit.probes else {}
    return {function.name: function.reference for function in audit.functions if function.name in scored}


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
    return with_legend(figure, axis)
