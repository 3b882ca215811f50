"""The results of notebooks 04 and 05 as tables and pictures."""

from __future__ import annotations

import html
from typing import Any

from workbench.exporting.proof import Proof
from workbench.inspection.evaluation import Evaluation, Examples, share_interval
from workbench.inspection.reading import RecordedGroup, Steps
from workbench.views.charts import before_after
from workbench.views.figure import inline_image
from workbench.views.groups import contribution_bars, group_tables
from workbench.views.tables import Table, Verbatim


class Both:
    """Some HTML, and the same as text."""

    def __init__(self, page: str, text: str) -> None:
        self.page, self.text = page, text

    def _repr_html_(self) -> str:
        return self.page

    def __str__(self) -> str:
        return self.text


def steps_table(steps: Steps) -> Table:
    """Some of a run's steps."""
    return Table(steps.some.columns, steps.some.itertuples(index=False))


def group_view(group: RecordedGroup) -> Both:
    """A group's completions from best to worst, and what each function adds to their advantages, numbered alike."""
    table = group_tables(group.explained)[0]
    table.caption = group.title
    bars = inline_image(contribution_bars(group.explained), f"step {group.step}: {group.explained.verdict}")
    return Both(f"{table._repr_html_()}<div>{bars}</div>", f"{table}\n{group.explained.verdict}")


def evaluation_picture(evaluation: Evaluation) -> Both:
    """The shares before and after with their intervals, the gain, and the numbers beside it."""
    rows = [(label, share_interval(old), share_interval(new)) for label, old, new in evaluation.pairs]
    text = str(evaluation)
    image = inline_image(before_after(rows), text.partition(";")[0])
    return Both(f"{image}<pre>{html.escape(text)}</pre>", text)


def examples_table(examples: Examples) -> Table:
    """Prompts with a completion of the base and one of the trained policy."""
    return Table(["held-out prompt", "base", "trained"], [list(map(Verbatim, row)) for row in examples.rows])


def proof_table(proof: Proof) -> Table:
    """The distances that a proof measured, and what they prove."""
    rows: list[list[Any]] = [
        ["largest logit difference, merged to adapter", proof.largest_logit_difference],
        ["spread (std) of the logits", proof.logit_spread],
        ["largest logit difference, base to adapter", proof.largest_difference_to_base],
        ["same greedy completion", f"{proof.same_greedy} of {proof.prompts} prompts"],
        ["merged is base + adapter, and not base", proof.agrees],
    ]
    return Table(["proof", "found"], rows)
