"""The commands for training: what a run would do, the run, and a look at it or a word to it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import workbench as wb
from workbench.base.errors import RequestError, nearest
from workbench.base.workspace import replace_file, shown
from workbench.commands.command import Result, command, json_text, open_named


@command("03 Train")
def plan(source: str, out: Path | None, said: list[str] | None, **options: Any) -> Result:
    """Show what a run would do, and whether it fits the GPU.

    Settings requested and effective, the batch in words, GPU memory. The policy is not loaded. Old
    names are translated, each with a line; unknown ones, contradictions and batches without whole
    groups are errors (exit code 2); exits with 1 if it does not fit. "Effective" means on this
    machine; without a GPU, memory is estimated as on one. A preset is a recipe to start from; an
    unknown name lists them.

    Examples: `workbench plan t4 --vram 16`, `workbench plan train.py --out recipe.yaml`,
    `workbench plan recipe.yaml --set learning_rate=1e-5`, `workbench plan recipe.yaml --set
    algorithm=gspo`.

    Args:
        SOURCE: A recipe (.yaml), a preset, a script (.py; read, never run), or - for standard
            input.

    Options:
        --vram NUMBER as vram_gb [1..]: GPU memory in GB to plan for, instead of this machine's
            card.
        --out PATH: Write the recipe here (YAML), under today's names.
        --steps N [1..]: Train this many steps instead of the recipe's.
        --set KEY=VALUE... as said: Over the recipe: a dotted field, or a GRPOConfig name; may be
            repeated.
    """
    from workbench.training.plan.kept import answering

    recipe = sys.stdin.read() + "\n" if source == "-" else source
    with answering():
        planned = wb.plan(recipe, said=said or [], **options)
        if out:
            planned.recipe.save(out, portable=True)
        if planned.memory is None or planned.memory.fits is not False:
            return Result(planned.found(), planned)
        from workbench.memory import hints

        inputs = planned.memory.inputs
        remedies = [
            "to make it fit, one or more of these, cheapest first:",
            *hints(inputs.recipe, inputs.settings),
        ]
    return Result(planned.found(), f"{planned}\n\n" + "\n  - ".join(remedies), 1)


@command("03 Train")
def train(
    recipe: str, run_name: str | None, runs: str, steps: int | None, said: list[str] | None
) -> Result:
    """Train as a recipe says.

    Ctrl-C stops after the step and saves; a second one aborts. While it trains, `workbench watch`
    shows it and `workbench control` steers it, from any other terminal. A run that was stopped or
    killed resumes with `workbench continue`.

    Examples: `workbench train recipe.yaml --steps 20 --set learning_rate=1e-5 --set
    policy.load_in_4bit=false`, `workbench train recipe.yaml --set algorithm=dr_grpo` (or grpo,
    dapo, gspo, gdpo, cispo: the settings of that paper).

    Args:
        RECIPE: Recipe file (YAML) or a preset's name; workbench/tiny/recipe.yaml is one to
            start from.

    Options:
        --run-name TEXT: Name of the run, instead of the recipe's.
        --runs TEXT = runs: Folder for the run's folder.
        --steps N [1..]: Train this many steps instead of the recipe's.
        --set KEY=VALUE... as said: Over the recipe: a dotted field, or a GRPOConfig name; may be
            repeated.
    """
    from workbench.training.plan.presets import find_recipe, of_recipe
    from workbench.training.plan.settings import overridden

    file = find_recipe(recipe)
    with of_recipe(shown(file)):
        edited = overridden(wb.Recipe.load(file), said or [], steps)
        edited.run_name = run_name or edited.run_name
        return _trained(functools.partial(wb.train, edited, runs=runs))


def _trained(training: Callable[..., Any]) -> Result:
    from workbench.views.terminal import TerminalProgress

    terminal = TerminalProgress()
    try:
        run = training(watchers=[terminal])
    except BaseException:
        print(terminal.ended, end="\n" if terminal.ended else "", file=sys.stderr)
        raise
    result = run.result()
    data = {"run": str(run.path), "adapter": str(run.adapter), "ended": terminal.ended, **result}
    text = (
        f"{result['minutes']:.1f} minutes; adapter in {shown(run.adapter)}; next: `workbench eval"
        f" {run.name}`, or notebook 04"
    )
    return Result(data, "\n".join(filter(None, [terminal.ended, text])))


@command("03 Train", streams=True)
def watch(run: str, once: bool, png: Path | None, every: float, as_json: bool) -> None:
    """Follow a run that trains in another process.

    Shows its numbers, its health and its changes, and ends when the run ends. Ctrl-C stops
    watching, not the run. --once, --png and --json show its current state and exit.

    Args:
        RUN = latest: A run by name or path; latest: the one training, or begun last.

    Options:
        --once: Print its current state and exit.
        --png PATH: Write its current curves to this file.
        --every NUMBER = 1 [0.1..]: Seconds between two updates.
        --json as as_json: Print one JSON object on standard output, for scripts.
    """
    from workbench.views import watch as views
    from workbench.views.run_view import FollowedRun

    followed = FollowedRun(open_named(run, "training"))
    if png is not None:
        with replace_file(png) as beside:  # atomically
            beside.write_bytes(followed.picture(followed.line())[0])
        print(f"curves written to {png}", file=sys.stderr)
    if as_json:
        print(json_text(views.snapshot(followed)))
    elif once or (png is None and followed.over):
        print(views.snapshot_text(followed))
    elif png is None:
        views.follow(followed, every)


# a weight may be negative
@command("03 Train", context_settings={"ignore_unknown_options": True})
def control(
    run: str, action: str, details: list[str] | None, timeout: float, force: bool
) -> Result:
    """Stop, pause or change a run while it trains.

    The request is applied at the end of the step in flight and recorded in events.jsonl. Exits with
    1 if the run refuses, with 3 if it has not answered in time.

    Examples: `workbench control latest stop`, `workbench control latest weight format_reward 0.5`.

    Args:
        RUN: A run by name or path; latest: the one training.
        ACTION: stop, pause, resume, checkpoint, sample, weight, mute, unmute, reload, beta or
            learning_rate.
        [DETAILS]...: weight: FUNCTION VALUE; mute, unmute: FUNCTION; beta, learning_rate:
            VALUE.

    Options:
        --timeout NUMBER = 60 [0..]: Seconds to wait for the trainer's answer; 0: do not wait.
        --force: Also take a learning rate or beta over 100 times the effective one.
    """
    from workbench.views import watch

    own, words = ("--timeout", "--force", "--json"), details or []
    for word in words:
        if word.startswith("--"):  # a weight may be negative, so typer lets it through
            raise RequestError(
                f"no option {word}",
                rule="control takes --timeout, --force and --json",
                remedy=nearest(word, own, "leave it out"),
            )
    answer = watch.control(open_named(run, "training"), action, words, timeout, force)
    code = {True: 0, False: 1, None: 3 if timeout else 0}[answer["applied"]]
    return Result(answer, watch.answered(answer, timeout), code)


@command("03 Train")
def continue_(run: str, take_over: bool, **options: Any) -> Result:
    """Resume a run that was stopped or killed, from its checkpoint.

    It resumes in its own folder, from its latest checkpoint, after a failure as well. Optimiser,
    schedule, random states and the order of the prompts are those of the checkpoint; on a CPU the
    numbers are those of a run that was never stopped.

    Args:
        RUN = latest: A run by name or path; latest: the last that is not training.

    Options:
        --steps N [1..]: Train this many steps more (do not repeat this after a kill). The
            learning rate's schedule then runs over all of them.
        --hold-rate: With --steps, keep the last step's learning rate instead.
        --from NAME as checkpoint: Resume from this one, such as checkpoint-20; later ones are
            deleted.
        --accept-changes: Resume although recipe, rows or rewards were changed; recorded.
        --take-over: The run began on another machine, now gone (a lost Colab runtime).
    """
    opened = open_named(run, "begun" if take_over else "resting")
    return _trained(functools.partial(wb.continue_run, opened, take_over=take_over, **options))
