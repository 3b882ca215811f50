"""A run's evaluation as inspect_ai logs, one per policy, for its viewer and its data frames."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from workbench.base.errors import RunError
from workbench.base.kinds import Fields
from workbench.base.workspace import made, written
from workbench.inspection.evaluation import FILE, read_evaluation
from workbench.inspection.measured import Evaluation, Measured
from workbench.run.directory import RunDirectory

if TYPE_CHECKING:
    from inspect_ai.log import EvalLog


def write_eval_log(run: RunDirectory, folder: str | Path | None = None) -> list[Path]:
    """Write what `evaluate` measured as EvalLogs of inspect_ai: `inspect view --log-dir FOLDER`
    shows them.

    >>> # wb.inspection.write_eval_log(wb.open_run())

    One log for each policy: base, trained, each checkpoint that was measured, and base and trained
    taking the likeliest tokens. A sample is a completion: epoch 1 to the number of completions a
    prompt. Scores: `correct` (strict), `correct_lenient`, `format` and `finished` as 0 or 1, and
    `reward`; each log holds their means.

    Args:
        folder: where they are written; None: `eval_logs` in the run's folder. Logs of the same
            names are replaced.

    Raises:
        RunError: if the run has not been evaluated, or inspect_ai is not installed.
    """
    try:
        import inspect_ai.log as logs
    except ImportError:
        raise RunError(
            "inspect_ai: not installed",
            rule="EvalLogs are written by their own library",
            remedy="`pip install inspect-ai`, or `uv sync --extra inspect`",
        ) from None
    evaluation, to = read_evaluation(run), Path(folder) if folder else run.path / "eval_logs"
    policies = {"base": evaluation.before, "trained": evaluation.after}
    for step, measured in evaluation.curve.items():
        if measured is not evaluation.before and measured is not evaluation.after:
            policies[f"step-{step}"] = measured
    policies |= zip(("base-greedy", "trained-greedy"), evaluation.greedy or ())
    made(to)
    files = []
    for who, measured in policies.items():
        file = to / f"{run.name}-{who}.eval"
        with written(file):
            logs.write_eval_log(_log(run, evaluation, who, measured), str(file))
        files.append(file)
    return files


def _log(run: RunDirectory, evaluation: Evaluation, who: str, measured: Measured) -> EvalLog:
    from inspect_ai.log import EvalLog

    manifest, (prompts, epochs) = run.manifest(), measured.correct.shape
    at = datetime.datetime.fromtimestamp((run.path / FILE).stat().st_mtime, datetime.UTC)
    model = f"{(manifest.get('policy') or {}).get('name', 'policy')}/{who}"
    scores = [
        {"name": name, "scorer": name, "metrics": {"mean": {"name": "mean", "value": mean}}}
        for name, mean in measured.shares().items()
        if mean is not None
    ]
    about = {
        "run_id": str(manifest.get("id", run.name)),
        "task_id": f"{run.name}-{who}",
        "eval_id": f"{run.name}-{who}",
        "created": at.isoformat(timespec="seconds"),
        "task": str(run.recipe().task or run.name),
        "model": model,
        "dataset": {"name": "held-out prompts", "samples": prompts},
        "config": {"epochs": epochs},
        "metadata": {name: evaluation.found[name] for name in ("gain", "verdict", "right_by")},
    }
    total = prompts * epochs
    results = {"total_samples": total, "completed_samples": total, "scores": scores}
    samples = [
        _sample(evaluation, measured, model, prompt, epoch)
        for prompt, epoch in np.ndindex(prompts, epochs)
    ]
    log = {"status": "success", "eval": about, "results": results, "samples": samples}
    return EvalLog.model_validate(log)


def _sample(
    evaluation: Evaluation, measured: Measured, model: str, prompt: int, epoch: int
) -> Fields:
    from inspect_ai.model import ModelOutput

    asked, row = evaluation.prompts[prompt], dict(evaluation.rows[prompt])
    row.pop("prompt", None)
    messages = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
    why = "stop" if measured.finished[prompt, epoch] else "max_tokens"
    output = ModelOutput.from_content(model, measured.completions[prompt][epoch], why)
    scores = {
        name: {"value": float(values[prompt, epoch])}
        for name, values in measured.numbers.items()
        if values is not None and not np.isnan(values[prompt, epoch])
    }
    return {
        "id": prompt + 1,
        "epoch": epoch + 1,
        "input": asked,
        "target": str(row.get("answer", "")),
        "messages": [*messages, output.message.model_dump()],
        "output": output,
        "scores": scores,
        "metadata": json.loads(json.dumps(row, default=str)),
    }
