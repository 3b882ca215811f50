"""Results display themselves: which view IPython shows for which result.

Stages return plain results and import no view; IPython looks the view up here, by the type's name.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from workbench.kinds import Fields
from workbench.training import watchers
from workbench.workspace import write_unless_edited

# Type of a result -> what makes its view. A view has `_repr_mimebundle_` or `_repr_html_`, and its
# `str()` is its text.
VIEWS: dict[str, str] = {
    "workbench.audit.examination.RewardAudit": "workbench.views.audit.audit_view",
    "workbench.data.difficulty.Profile": "workbench.views.results.difficulty_picture",
    "workbench.data.rendering.PromptLengths": "workbench.views.results.lengths_picture",
    "workbench.data.sources.Rows": "workbench.views.results.rows_table",
    "workbench.data.template.TemplateCard": "workbench.views.results.card_view",
    "workbench.decide.duel.Duel": "workbench.views.duel.duel_picture",
    "workbench.decide.twin.Twin": "workbench.views.twin.twin_picture",
    "workbench.decide.trial.JudgeTrial": "workbench.views.results.trial_view",
    "workbench.exporting.checks.Proof": "workbench.views.results.proof_table",
    "workbench.exporting.checks.Proofs": "workbench.views.results.proof_table",
    "workbench.exporting.risk.MergeRisk": "workbench.views.merge_risk.merge_risk_picture",
    "workbench.health.diagnosis.Verdicts": "workbench.views.health.health_view",
    "workbench.inspection.levels.OverLevels": "workbench.views.results.levels_picture",
    "workbench.inspection.measured.Evaluation": "workbench.views.results.evaluation_picture",
    "workbench.inspection.reading.Listing": "workbench.views.inspection.listing_table",
    "workbench.inspection.reading.RecordedGroup": "workbench.views.results.group_view",
    "workbench.inspection.tokens.TokenView": "workbench.views.inspection.token_page",
    "workbench.inspection.several_runs.Comparison": "workbench.views.inspection.comparison_view",
    "workbench.memory.estimate.MemoryEstimate": "workbench.views.memory.memory_picture",
    "workbench.replaying.Replay": "workbench.views.replay.replay_view",
    "workbench.rewards.groups.ExplainedGroup": "workbench.views.groups.explained_view",
    "workbench.run.batch.ScoredBatch": "workbench.views.groups.score_table",
    "workbench.run.directory.RunDirectory": "workbench.views.run_view.RunCurves",
    "workbench.teaching.checklist.Checklist": "workbench.views.results.checklist_table",
    "workbench.training.plan.Plan": "workbench.views.results.plan_view",
}


def register(shell: Any = None) -> bool:
    """Register the results with IPython's display; returns whether there was a shell.

    The face does it whenever a name of it is first used. None: the running shell, if there is one;
    IPython is not imported for it.
    """
    if shell is None and "IPython" in sys.modules:
        shell = getattr(sys.modules["IPython"], "get_ipython", lambda: None)()
    display = getattr(shell, "display_formatter", None)
    if display is None:
        return False

    def shown(result: object) -> Fields:
        # IPython has its own text for these, and would take that
        if isinstance(result, (list, tuple)):
            text = display.formatters["text/plain"]
            text.for_type(type(result), lambda own, printer, cycle: printer.text(str(view_of(own))))
        view = view_of(result)
        rich = (
            view._repr_mimebundle_()
            if hasattr(view, "_repr_mimebundle_")
            else {"text/html": view._repr_html_()}
        )
        return {"text/plain": str(view), **rich}  # for readers who see neither HTML nor images

    if hasattr(shell, "register_magic_function"):

        def write(line: str, cell: str) -> None:
            """Write the cell to a file, as %%writefile does, unless the file was edited or no cell
            wrote it.
            """
            print(write_unless_edited(line.strip(), cell))

        shell.register_magic_function(write, "cell", "write_unless_edited")
    for result in VIEWS:
        display.mimebundle_formatter.for_type_by_name(*result.rsplit(".", 1), shown)
    if hasattr(shell, "kernel"):  # a run that trains in a notebook's cell is drawn there
        watchers.unasked[:] = [lambda: importlib.import_module("workbench.views.live").LivePlot()]
    return True


def view_of(result: object) -> Any:
    """The view of a result, as a cell would show it; a result without one is its own."""
    for kind in type(result).__mro__:
        if view := VIEWS.get(f"{kind.__module__}.{kind.__qualname__}"):
            module, _, name = view.rpartition(".")
            return getattr(importlib.import_module(module), name)(result)
    return result
