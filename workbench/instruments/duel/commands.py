"""`workbench duel`."""

from __future__ import annotations

import sys
from typing import Any

from workbench.base.workspace import replace_file
from workbench.commands.command import Result, command


@command("04 Inspect", aborted="finished runs are kept; the same command resumes the duel")
def duel(recipes: list[str], plan: bool, **options: Any) -> Result:
    """Train recipes against each other until it is clear which is better.

    Two runs cannot tell two rewards apart: with another seed, each would have ended elsewhere. A
    duel trains every recipe several times, with the same seeds, the same number of completions and
    the same held-out prompts, one run after another and another recipe first each time. After each
    seed from the third on, it tests the differences of the held-out rates; it stops once one recipe
    is called better, or when the budget is spent: then it says how many seeds would tell, if
    that can be told. Where no recipe is better, one duel in twenty still calls one, and more do
    where a recipe's seeds sometimes collapse.

    Rates are compared, never rewards: a held-out prompt is solved where the first recipe's task
    says so, whatever the recipes pay for. The runs stay under runs/NAME, with duel.png. Killed or
    interrupted, the same command resumes.

    Exits with 0 if all comparisons are called, with 1 if one is undecided.

    Examples: `workbench duel binary.yaml tiered.yaml --budget 6000 --plan`, `workbench duel
    binary.yaml tiered.yaml --budget 6000`.

    Args:
        RECIPES...: Two or more recipe files, or presets.

    Options:
        --budget N = 6000 [1..]: Completions that training may sample, all runs together.
        --steps N [1..]: Steps of a run of the first recipe; default: as leave 6 runs for each.
        --held-out N [2..]: Held-out prompts that each run measures; default: the first
            recipe's.
        --seed N = 1 [0..]: The first seed.
        --name TEXT: Name of the folder under runs/; default: the recipes' names.
        --plan: Show what it would train, and exit.
    """
    from workbench.instruments.duel.fighting import fight, plan_duel
    from workbench.instruments.duel.picture import DuelProgress, duel_picture
    from workbench.views.figure import png

    planned = plan_duel(*recipes, **options)
    if plan:
        return Result(planned.asked, planned)
    print(planned, file=sys.stderr)
    shown_by = DuelProgress(planned)
    with shown_by.bar:
        fought = fight(planned, watchers=[shown_by], on_pair=shown_by.pair)
    with replace_file(planned.folder / "duel.png") as beside:
        beside.write_bytes(png(duel_picture(fought).figure))
    return Result(fought.found, fought, int(not fought.called))
