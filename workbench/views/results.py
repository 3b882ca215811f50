"""The results of notebooks 03 to 05 as tables and pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.views.figure import BLUE, GREY, inline_image, new_figure, with_legend
from workbench.views.groups import contribution_bars, group_tables
from workbench.views.tables import Table, Verbatim, View, pre

if TYPE_CHECKING:
    from workbench.exporting import Proof
    from workbench.inspection.evaluation import Evaluation, Examples
    from workbench.inspection.reading import RecordedGroup, Steps
    from workbench.training.prepare import Plan


def plan_view(plan: Plan) -> View:
    """The batch in words, what is not as requested, and every setting: requested, effective, set by."""
    lines = [f"{plan.words}.", f"{plan.generation}.", *(f"note: {note}" for note in plan.notes)]
    return View(pre("\n".join(lines)) + Table(plan.HEADER, plan.cells)._repr_html_(), str(plan))


def steps_table(steps: Steps) -> Table:
    """Some of a run's steps."""
    return Table(steps.some.columns, steps.some.itertuples(index=False))


def group_view(group: RecordedGroup) -> View:
    """A group's completions from best to worst, and what each function adds to their advantages, numbered alike."""
    table = group_tables(group.explained)[0]
    table.caption = group.title
    bars = inline_image(contribution_bars(group.explained), f"step {group.step}: {group.explained.verdict}")
    return View(f"{table._repr_html_()}<div>{bars}</div>", f"{table}\n{group.explained.verdict}")


def evaluation_picture(evaluation: Evaluation) -> View:
    """The shares before and after, each with its 95 % interval drawn, the gain, and the numbers beside it."""
    from workbench.inspection.evaluation import share_interval

    text = str(evaluation)
    figure, axis = new_figure(8, 0.75 * len(evaluation.pairs) + 0.9)
    for which, (label, offset, colour) in enumerate((("base", -0.18, GREY), ("trained", 0.18, BLUE)), 1):
        for place, pair in enumerate(evaluation.pairs):
            share, low, high = share_interval(pair[which])
            drawn = {"xerr": [[share - low], [high - share]], "error_kw": {"elinewidth": 1, "capsize": 3}}
            axis.barh(place + offset, share, height=0.32, color=colour, label=None if place else label, **drawn)
            axis.text(min(high + 0.015, 1.0), place + offset, f"{share:.0%}", va="center", fontsize=8)
    axis.set_yticks(range(len(evaluation.pairs)), [label for label, _, _ in evaluation.pairs], fontsize=9)
    axis.set_xlim(0, 1.08)
    axis.set_xlabel("share of held-out completions", fontsize=8)
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    return View(f"{inline_image(with_legend(figure, axis), text.partition(';')[0])}{pre(text)}", text)


def examples_table(examples: Examples) -> Table:
    """Prompts with a completion of the base and one of the trained policy."""
    return Table(["held-out prompt", "base", "trained"], [list(map(Verbatim, row)) for row in examples.rows])


def proof_table(proof: Proof) -> Table:
    """The distances that a proof measured, and what they prove."""
    rows = {
        "largest logit difference, merged to adapter": proof.largest_logit_difference,
        "spread (std) of the logits": proof.logit_spread,
        "largest logit difference, base to adapter": proof.largest_difference_to_base,
        "same greedy completion": f"{proof.same_greedy} of {proof.prompts} prompts",
        "merged is base + adapter, and not base": proof.agrees,
    }
    return Table(["proof", "found"], rows.items())
