"""`workbench probe`: a task's rewards examined before any training, with a progress bar."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from workbench.audit.examination import DEADLINE_S, ROWS, RewardAudit, audit_rewards
from workbench.recipe import template_kwargs
from workbench.task import Task, load_task


def probe_task(
    task: str | Path | Task,
    *,
    policy: str | None = None,
    chat_template_kwargs: dict[str, Any] | str | None = None,
    rows: int = ROWS,
    weights: dict[str, float] | None = None,
    max_completion_length: int = 512,
    cases: str | None = None,
    deadline_s: float = DEADLINE_S,
) -> RewardAudit:
    """Examine a task by name, file or object; arguments and errors as for `audit_rewards`.

    Args:
        policy: whose tokenizer and template the honest completion is sent through; None: it is not.
        chat_template_kwargs: what that template is rendered with, as in the recipe; JSON text will do.
    """
    from workbench.views.terminal import progress_bar

    loaded = task if isinstance(task, Task) else load_task(task)
    tokenizer = None
    if policy is not None:
        from workbench.training.loading import load_tokenizer

        tokenizer = load_tokenizer(policy, template_kwargs(chat_template_kwargs, "chat_template_kwargs"))
    with progress_bar("functions") as bar:
        shown = bar.add_task(loaded.name, total=None)
        return audit_rewards(
            loaded,
            rows=rows,
            weights=weights,
            tokenizer=tokenizer,
            max_completion_length=max_completion_length,
            cases=cases,
            deadline_s=deadline_s,
            progress=lambda done, of: bar.update(shown, completed=done, total=of),
        )
