"""Results show themselves: which view stands for which result, where IPython displays it.

Stages return plain results and import no view; IPython asks here, by the type's name, when one is displayed.
"""

from __future__ import annotations

import importlib
from typing import Any

from workbench.training import watchers

# Type of a result -> the function or class that makes its view. A view has `_repr_mimebundle_`, `_repr_html_` or both.
VIEWS: dict[str, str] = {
    "workbench.audit.examination.RewardAudit": "workbench.views.audit.AuditView",
    "workbench.audit.regression_cases.CaseResults": "",
    "workbench.replaying.Replay": "workbench.views.replay.ReplayView",
    "workbench.health.diagnosis.Verdicts": "workbench.views.health.HealthReport",
    "workbench.data.sources.Rows": "workbench.views.dataset.rows_table",
    "workbench.data.template.TemplateCard": "workbench.views.template.CardView",
    "workbench.data.lengths.PromptLengths": "workbench.views.dataset.lengths_picture",
    "workbench.data.difficulty.Profile": "workbench.views.dataset.difficulty_picture",
    "workbench.inspection.reading.Steps": "workbench.views.results.steps_table",
    "workbench.inspection.reading.RecordedGroup": "workbench.views.results.group_view",
    "workbench.inspection.evaluation.Evaluation": "workbench.views.results.evaluation_picture",
    "workbench.inspection.evaluation.Examples": "workbench.views.results.examples_table",
    "workbench.exporting.proof.Proof": "workbench.views.results.proof_table",
    "workbench.run.batch.ScoredBatch": "workbench.views.tables.score_table",
}


def register(shell: Any = None) -> None:
    """Tell IPython's display about the results; without a shell, the running one, if there is one."""
    from IPython import get_ipython

    shell = shell or get_ipython()
    if shell is None:
        return
    if getattr(shell, "kernel", None) is not None:  # a notebook: a run that trains in it is drawn there
        watchers.unasked[:] = [lambda: _made("workbench.views.live.LivePlot")()]
    for typed, view in VIEWS.items():
        if view:
            module, _, name = typed.rpartition(".")
            shell.display_formatter.mimebundle_formatter.for_type_by_name(module, name, _bundle(view))


def view_of(result: Any) -> Any:
    """The view of a result, as a cell would show it; a result that has none is its own."""
    kind = type(result)
    view = VIEWS.get(f"{kind.__module__}.{kind.__qualname__}")
    return _made(view)(result) if view else result


def _made(view: str) -> Any:
    module, _, name = view.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _bundle(view: str) -> Any:
    def bundle(result: Any, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        shown = _made(view)(result)
        made = getattr(shown, "_repr_mimebundle_", None)
        if made is not None:
            return made(include=include, exclude=exclude)
        return {"text/plain": str(shown), "text/html": shown._repr_html_()}

    return bundle
