"""`workbench levels`."""

from __future__ import annotations

from typing import Any

from workbench.commands.command import Result, command, open_named


@command("04 Inspect")
def levels(run: str, **options: Any) -> Result:
    """Measure a run's gain at levels around and above the trained one.

    For tasks named reasoning_gym/NAME@LEVEL. Base and trained are sampled at the run's temperature.
    Exits with 1 unless the gain reaches the level above the trained one.

    Example: `workbench levels latest --held-out 80`.

    Args:
        RUN = latest: A run by name or path; latest: the last that ended with an adapter.

    Options:
        --held-out N = 200 [2..]: At most this many held-out prompts.
        --samples N = 4 [1..]: Completions per prompt.
        --seed N = 0: The same seed gives the same completions on the same machine.
    """
    from workbench.instruments.games.over_levels import over_levels
    from workbench.views.terminal import progress

    with progress("passes", "levels") as bar:
        over = over_levels(open_named(run, "trained"), progress=bar, **options)
    return Result(over.found, over, int(not over.reaches))
