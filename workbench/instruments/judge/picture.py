"""A judge's trial as a page."""

from __future__ import annotations

from workbench.instruments.judge.trial import JudgeTrial
from workbench.views.tables import CellMark, Table, View, item, number, pre


def trial_view(trial: JudgeTrial) -> View:
    """A judge's trial: the verdict, what to do about what was not passed, and every measure."""
    marks = {"passed": "passed", "failed": "FAILED", "cannot be told": "cannot be told"}
    states = {"failed": "error", "cannot be told": "warning"}
    rows, items, lines = [], [], []
    for own in trial.measures:
        interval = "" if own.low is None else f"{own.low:.2f} to {own.high:.2f}"
        value, mark = number(own.value, ".2f"), marks.get(own.verdict)
        judged = CellMark(mark) if mark else own.verdict
        rows.append([own.name, value, interval, own.limit_words, judged, own.asks])
        if state := states.get(own.verdict):
            more = f"about --cases {own.needed} would tell" if own.needed else own.remedy
            texts = f"{own}: {own.asks}", f"limit: {own.reason}", f"→ {more}"
            items.append(item(state, "\n".join(texts)))
            lines.append(f"{state}: " + "\n  ".join(texts))
    title = f"{trial.function} on {trial.task}, {trial.rows} prompts: {trial.state}"
    about = f"asked: {trial.asked}\n{trial.price}"
    header = ["measure", "value", "interval", "limit", "verdict", "what is measured"]
    table = Table(header, rows)
    page = f"<b>{pre(title)}</b>{pre(about)}<ul>{''.join(items)}</ul>{table._repr_html_()}"
    text = "\n\n".join(filter(None, [f"{title}\n{about}", "\n".join(lines), str(table)]))
    return View(page, text)
