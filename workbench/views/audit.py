"""A `RewardAudit` for people: what reward hacks earn, the findings, what each function pays, and
the best paid probes.
"""

from __future__ import annotations

import numpy as np

from workbench.audit.examination import RewardAudit
from workbench.base.kinds import Figure
from workbench.views.figure import inline_image, new_figure, stacked_bars, with_legend
from workbench.views.look import GREY
from workbench.views.tables import (
    Table,
    Verbatim,
    View,
    item,
    joined,
    number,
    one_line,
    pre,
    short_name,
)

MOST_PROBES = 12  # in the table and the chart


def audit_view(audit: RewardAudit, chart: bool = True) -> View:
    """The whole audit, as a page and as text."""
    tables = joined(table for table in (functions_table(audit), probes_table(audit)) if table.rows)
    counted = {
        "prompt": audit.rows,
        "completion": audit.completions,
        "regression case": audit.cases,
    }
    counts = ", ".join(f"{n} {word}{'s' * (n > 1)}" for word, n in counted.items() if n)
    title = f"{audit.task}: {audit.verdict}"
    tried = f"expected format: {audit.format}; {counts}, {audit.seconds:.1f} s"
    findings = "\n".join(map(str, audit.findings))
    text = "\n\n".join(filter(None, [f"{title}\n{tried}", findings, tables.text]))
    image = ""
    if chart and audit.probes:
        image = inline_image(leaderboard_chart(audit), audit.verdict)
    items = [
        item(each.severity, "", str(each).partition(": ")[2].replace("\n  -> ", "\n→ "))
        for each in audit.findings
    ]
    head = f"<b>{pre(title)}</b>{pre(tried)}{image}<ul>{''.join(items)}</ul>"
    return View(head + tables.html, text)


def functions_table(audit: RewardAudit) -> Table:
    """What each function declares, pays the reference completion, and pays at least and at most
    over all that were tried.
    """
    rows = [
        [f.name, f.weight, f.maximum, f.reference, f.lowest, f.highest, f.unit]
        for f in audit.functions
    ]
    header = ["function", "weight", "declared maximum", "reference", "lowest", "highest"]
    return Table([*header, "measured in"], rows, "What each function pays")


def probes_table(audit: RewardAudit) -> Table:
    """The probes, best paid first."""
    if not audit.probes:
        return Table([], [])
    reference = _reference(audit)
    whole = "100%" if any(probe.share is not None for probe in audit.probes) else "-"
    example = Verbatim(one_line(audit.reference, 60))
    rows = [
        ["(the reference completion)", audit.reference_total, whole, *reference.values(), example]
    ]
    for probe in audit.probes[:MOST_PROBES]:
        name = probe.name
        if probe.own:
            name += " (yours)"
        if probe.right:
            name += " (right, padded)"
        scores = [probe.scores[each] for each in reference]
        example = Verbatim(one_line(probe.example, 60))
        rows.append([Verbatim(name), probe.total, number(probe.share, ".0%"), *scores, example])
    caption = "What reward hacks earn, compared with the reference completion"
    if len(audit.probes) > MOST_PROBES:
        caption += f" (the {MOST_PROBES} that earn most, of {len(audit.probes)})"
    header = ["completion", "earns", "share", *map(short_name, reference), "for example"]
    return Table(header, rows, caption)


def _reference(audit: RewardAudit) -> dict[str, float | None]:
    # What the reference earns, of the functions that could score.
    scored = audit.probes[0].scores if audit.probes else {}
    return {
        function.name: function.reference for function in audit.functions if function.name in scored
    }


def leaderboard_chart(audit: RewardAudit) -> Figure:
    """What the reference completion and the best paid probes earn, by function: a bar each, with
    the reference as a line.
    """
    reference = _reference(audit)
    weights = {function.name: function.weight for function in audit.functions}
    labels = ["the reference completion", *(probe.name for probe in audit.probes[:MOST_PROBES])]
    scores = [reference, *(probe.scores for probe in audit.probes[:MOST_PROBES])]
    earned = [
        (name, weights[name] * np.nan_to_num(np.array([own[name] for own in scores], dtype=float)))
        for name in reference
    ]
    figure, axis = new_figure(8, 0.6 + 0.24 * len(labels))
    stacked_bars(axis, labels, earned)
    axis.axvline(audit.reference_total, color=GREY, linestyle="--", linewidth=1)
    return with_legend(figure, axis, x="weighted reward")
