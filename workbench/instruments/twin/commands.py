"""`workbench twin`."""

from __future__ import annotations

import sys
from typing import Any

from workbench.base.workspace import replace_file
from workbench.commands.command import Result, command, open_named


@command("04 Inspect", aborted="the twin is kept; the same command resumes it")
def twin(run: str, plan: bool, **options: Any) -> Result:
    """Train a run again without the suspected cause of a hack.

    For a reward hack that the report, health or a probe points to. The twin begins at the newest
    checkpoint from before the hack grew, or at the start, with the run's own seed, prompts and
    settings, and one change: a reward function muted, or the task file with a branch patched. It is
    a separate run, with twin.png; the original stays as it is. Killed or interrupted, the same
    command resumes it.

    What grew is measured by what the suspect does not score: the share of wrong completions, or
    --sign. The suspect was the cause if the twin surely undoes more than half of that, and was not
    if surely less. After the change the two differ by luck, too, which one pair of runs does not
    measure: that it alone undoes half is taken to be out of the question.

    Exits with 0 if it was the cause or was not, with 1 if that cannot be told.

    Examples: `workbench twin latest --mute length_reward`, `workbench twin hacked --patch fixed.py
    --from checkpoint-20`, `workbench twin hacked --mute length_reward --sign "length_tokens > 60"
    --plan`.

    Args:
        RUN = latest: A run that has ended, by name or path; latest: the last that recorded
            completions.

    Options:
        --mute FUNCTION: The reward function to give the weight 0.
        --patch FILE: The run's task file with an edited reward function, instead.
        --from NAME as checkpoint: Begin here, such as checkpoint-20, or base.
        --steps N [1..]: Steps after that; default: as far as the original got.
        --sign SQL: What grew, an expression over the record's columns; more is worse.
        --plan: Show what it would train, and exit.
    """
    from workbench.instruments.twin.growing import grow, plan_twin
    from workbench.instruments.twin.picture import twin_picture
    from workbench.views.figure import png
    from workbench.views.terminal import TerminalProgress

    planned = plan_twin(open_named(run, "recorded"), **options)
    if plan:
        return Result(planned.asked | {"sign": planned.sign.sql}, planned)
    print(planned, file=sys.stderr)
    grown = grow(planned, watchers=[TerminalProgress()])
    with replace_file(planned.folder / "twin.png") as beside:
        beside.write_bytes(png(twin_picture(grown).figure))
    return Result(grown.found, grown, int(grown.verdict == "cannot be told"))
