"""`workbench replay`: a run's recorded completions scored anew with an edited task, with a progress bar."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from workbench.errors import RecipeError
from workbench.replaying.again import replay
from workbench.replaying.comparing import Replay
from workbench.run.directory import open_run
from workbench.task import load_task


def replay_run(
    run: str | Path,
    task: str | Path,
    *,
    weights: dict[str, float] | None = None,
    out: Path | None = None,
    limit: int | None = None,
    examples: int = 5,
) -> Replay:
    """Replay a run by name or path with a task by name or file; arguments and errors as for `replay`.

    Args:
        out: a relative path starts from the current folder.
    """
    from workbench.views.terminal import progress_bar

    opened, loaded = open_run(run, latest="recorded"), load_task(task)
    with progress_bar("completions") as bar:
        shown = bar.add_task(opened.name, total=None)
        found = replay(
            opened,
            loaded,
            weights=weights,
            progress=lambda done, of: bar.update(shown, completed=done, total=of),
            out=Path.cwd() / out if out is not None else None,
            limit=limit,
            examples=examples,
        )
        bar.update(shown, total=found.completions)  # with a limit, that is all there was to do
    return found


def read_weights(said: Sequence[str]) -> dict[str, float]:
    """`["length_reward=0.5", ...]` as numbers by name.

    Raises:
        RecipeError: if one is not `name=number`.
    """
    weights = {}
    for text in said:
        name, _, number = text.rpartition("=")
        try:
            weight = float(number) if name.strip() else math.nan
        except ValueError:
            weight = math.nan
        if not math.isfinite(weight):
            raise RecipeError(
                f"--weight {text}", rule="a weight is name=number", remedy="for example --weight length_reward=0.5"
            )
        weights[name.strip()] = weight
    return weights
