"""A run's evaluation as inspect_ai logs, one per policy, for its viewer and its data frames."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

from workbench.errors import RunError
from workbench.inspection.evaluation import FILE, read_evaluation
from workbench.inspection.measured import Evaluation, Measured
from workbench.run.directory import RunDirectory
from workbench.workspace import made, written

_MESSAGES = {
    "system": "ChatMessageSystem",
    "user": "ChatMessageUser",
    "assistant": "ChatMessageAssistant",
    "tool": "ChatMessageTool",
}


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
        rule, remedy = (
            "EvalLogs are written by their own library",
            "`pip install inspect-ai`, or `uv sync --extra inspect`",
        )
        raise RunError("inspect_ai: not installed", rule=rule, remedy=remedy) from None
    evaluation, to = read_evaluation(run), Path(folder) if folder else run.path / "eval_logs"
    policies = {"base": evaluation.before, "trained": evaluation.after}
    known = (evaluation.before, evaluation.after)
    policies |= {
        f"step-{step}": own
        for step, own in evaluation.curve.items()
        if not any(own is each for each in known)
    }
    policies |= dict(zip(("base-greedy", "trained-greedy"), evaluation.greedy or ()))
    made(to)
    files = []
    for who, measured in policies.items():
        log, file = _log(run, evaluation, who, measured), to / f"{run.name}-{who}.eval"
        with written(file):
            logs.write_eval_log(log, str(file))
        files.append(file)
    return files


def _log(run: RunDirectory, evaluation: Evaluation, who: str, measured: Measured) -> object:
    import inspect_ai.log as logs

    manifest, (prompts, epochs) = run.manifest(), measured.correct.shape
    at = datetime.datetime.fromtimestamp((run.path / FILE).stat().st_mtime, datetime.UTC).isoformat(
        timespec="seconds"
    )
    model = f"{(manifest.get('policy') or {}).get('name', 'policy')}/{who}"
    samples = [
        _sample(evaluation, measured, model, prompt, epoch)
        for prompt in range(prompts)
        for epoch in range(epochs)
    ]
    means = {name: share for name, share in measured.shares().items() if share is not None}
    scores = [
        logs.EvalScore(
            name=name, scorer=name, metrics={"mean": logs.EvalMetric(name="mean", value=mean)}
        )
        for name, mean in means.items()
    ]
    return logs.EvalLog(
        status="success",
        eval=logs.EvalSpec(
            run_id=str(manifest.get("id", run.name)),
            task_id=f"{run.name}-{who}",
            eval_id=f"{run.name}-{who}",
            created=at,
            task=str(run.recipe().task or run.name),
            model=model,
            dataset=logs.EvalDataset(name="held-out prompts", samples=prompts),
            config=logs.EvalConfig(epochs=epochs),
            packages={
                name: str(version) for name, version in (manifest.get("versions") or {}).items()
            },
            metadata={name: evaluation.found[name] for name in ("gain", "verdict", "right_by")},
        ),
        results=logs.EvalResults(
            total_samples=len(samples), completed_samples=len(samples), scores=scores
        ),
        samples=samples,
    )


def _sample(
    evaluation: Evaluation, measured: Measured, model: str, prompt: int, epoch: int
) -> object:
    import inspect_ai.model as kinds
    from inspect_ai.log import EvalSample
    from inspect_ai.scorer import Score

    asked, row = evaluation.prompts[prompt], dict(evaluation.rows[prompt])
    messages = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
    output = kinds.ModelOutput.from_content(
        model,
        measured.completions[prompt][epoch],
        "stop" if measured.finished[prompt, epoch] else "max_tokens",
    )
    shown = [
        getattr(kinds, _MESSAGES.get(own["role"], "ChatMessageUser"))(content=own["content"])
        for own in messages
    ]
    counted = {
        "correct": measured.correct,
        "correct_lenient": measured.lenient,
        "format": measured.format,
    }
    counted |= {"finished": measured.finished, "reward": measured.total}
    values = {name: float(own[prompt, epoch]) for name, own in counted.items() if own is not None}
    row.pop("prompt", None)
    return EvalSample(
        id=prompt + 1,
        epoch=epoch + 1,
        input=asked if isinstance(asked, str) else shown,
        target=str(row.get("answer", "")),
        messages=[*shown, output.message],
        output=output,
        scores={name: Score(value=value) for name, value in values.items() if value == value},
        metadata=json.loads(json.dumps(row, default=str)),
    )
