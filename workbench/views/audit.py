"""A `RewardAudit` for people: what reward hacks earn, the findings, what each function pays, and
the best paid probes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from workbench.audit.examination import RewardAudit
from workbench.views.figure import GREY, inline_image, new_figure, stacked_bars, with_legend
from workbench.views.tables import Table, Verbatim, View, item, number, one_line, pre, short_name

MOST_PROBES = 12


def audit_view(audit: RewardAudit, most: int = MOST_PROBES, chart: bool = True) -> View:
    """The whole audit, with at most `most` probes in the table and the chart."""
    tables = [table for table in (functions_table(audit), probes_table(audit, most)) if table.rows]
    counted = [
        (audit.rows, "prompt"),
        (audit.completions, "completion"),
        (audit.cases, "regression case"),
    ]
    counts = ", ".join(f"{count} {word}{'s' * (count > 1)}" for count, word in counted if count)
    title = f"{audit.task}: {audit.verdict}"
    tried = f"expected format: {audit.format}; {counts}, {audit.seconds:.1f} s"
    text = "\n\n".join(
        filter(None, [f"{title}\n{tried}", "\n".join(map(str, audit.findings)), *map(str, tables)])
    )
    image = (
        inline_image(leaderboard_chart(audit, most), audit.verdict)
        if chart and audit.probes
        else ""
    )
    items = []
    for finding in audit.findings:
        words = str(finding).partition(": ")[2].replace("\n  -> ", "\n→ ")
        items.append(item(finding.severity, words))
    head = f"<b>{pre(title)}</b>{pre(tried)}{image}<ul>{''.join(items)}</ul>"
    return View(head + "".join(table._repr_html_() for table in tables), text)


def functions_table(audit: RewardAudit) -> Table:
    """What each function declares, pays the reference completion, and pays at least and at most
    over all that were tried.
    """
    header = [
        "function",
        "weight",
        "declared maximum",
        "reference",
        "lowest",
        "highest",
        "measured in",
    ]
    rows = [
        [f.name, f.weight, f.maximum, f.reference, f.lowest, f.highest, f.unit]
        for f in audit.functions
    ]
    return Table(header, rows, "What each function pays")


def probes_table(audit: RewardAudit, most: int = MOST_PROBES) -> Table:
    """The probes, best paid first."""
    reference = _reference(audit)
    whole = "100%" if any(probe.share is not None for probe in audit.probes) else "-"
    example = Verbatim(one_line(audit.reference, 60))
    rows = [
        ["(the reference completion)", audit.reference_total, whole, *reference.values(), example]
    ]
    for probe in audit.probes[:most]:
        name = probe.name
        if probe.own:
            name += " (yours)"
        if probe.right:
            name += " (right, padded)"
        scores = [probe.scores[each] for each in reference]
        example = Verbatim(one_line(probe.example, 60))
        rows.append([Verbatim(name), probe.total, number(probe.share, ".0%"), *scores, example])
    more = len(audit.probes) - most
    caption = "What reward hacks earn, compared with the reference completion"
    if more > 0:
        caption += f" (the {most} that earn most, of {len(audit.probes)})"
    header = ["completion", "earns", "share", *map(short_name, reference), "for example"]
    return Table(header, rows if audit.probes else [], caption)


def _reference(audit: RewardAudit) -> dict[str, float | None]:
    # What the reference earns, of the functions that could score.
    scored = audit.probes[0].scores if audit.probes else {}
    return {
        function.name: function.reference for function in audit.functions if function.name in scored
    }


def leaderboard_chart(audit: RewardAudit, most: int = MOST_PROBES) -> Any:
    """What the reference completion and the best paid probes earn, by function: a bar each, with
    the reference as a line.
    """
    reference, weights = (
        _reference(audit),
        {function.name: function.weight for function in audit.functions},
    )
    labels = ["the reference completion", *(probe.name for probe in audit.probes[:most])]
    earned = [reference, *(probe.scores for probe in audit.probes[:most])]
    figure, axis = new_figure(8, 0.6 + 0.24 * len(labels))
    scores = {
        name: np.array([scores[name] for scores in earned], dtype=float) for name in reference
    }
    stacked_bars(
        axis, labels, [(name, weights[name] * np.nan_to_num(own)) for name, own in scores.items()]
    )
    axis.axvline(audit.reference_total, color=GREY, linestyle="--", linewidth=1)
    return with_legend(figure, axis, x="weighted reward")
