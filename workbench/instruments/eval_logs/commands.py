"""`workbench logs`."""

from __future__ import annotations

from pathlib import Path

from workbench.base.workspace import shown
from workbench.commands.command import Result, command, open_named


@command("04 Inspect")
def logs(run: str, out: Path | None) -> Result:
    """Write what `workbench eval` measured as logs for inspect_ai.

    Open them in its viewer, or read them into a data frame.

    Example: `workbench logs latest`.

    Args:
        RUN = latest: A run, by name or path.

    Options:
        --out FOLDER: Where they are written, instead of eval_logs/ in the run's folder.
    """
    from workbench.instruments.eval_logs.writing import write_eval_log

    files = write_eval_log(open_named(run, "recorded"), out)
    lines = [f"written: {shown(file)}" for file in files]
    lines.append(f"look: inspect view --log-dir {shown(files[0].parent)}")
    return Result({"eval_logs": files}, "\n".join(lines))
