"""Putting the workbench on a trainer: record, live figure, health, control and a graceful stop,
around its own `train()`.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from workbench.base import processes
from workbench.base.errors import RunError
from workbench.base.kinds import Trainer
from workbench.base.workspace import shown
from workbench.run.directory import RunDirectory
from workbench.training.manifest import manifest_of
from workbench.training.plan import Plan
from workbench.training.plan import settings as settings_of
from workbench.training.randomness import random_kept
from workbench.training.resuming import Point, kept_task
from workbench.training.session import Session
from workbench.training.staged import Made, StagedSession
from workbench.training.watchers import Watchers

# Trainers that are not GRPO, by a part of their names -> what they do.
_OTHERS = {
    "RLOO": (
        "it has groups, but its baseline is the mean of the other completions, and its loss differs"
    ),
    "OnlineDPO": "it learns from which of two completions a judge prefers",
    "DPO": "it learns from pairs of completions that the dataset brings",
    "SFT": "it learns to write the dataset's texts, without rewards",
}


@random_kept()
def attach(
    trainer: Trainer,
    plan: Plan | None = None,
    *,
    run_name: str | None = None,
    watchers: Watchers = None,
    runs: str | Path = "runs",
    right_by: str | tuple[str, float] | None = None,
    answer_column: str | None = None,
) -> RunDirectory:
    """Put the workbench on a GRPOTrainer, and return the run that its `train()` will record.

    >>> trainer = GRPOTrainer(model=model, reward_funcs=[my_reward], args=config, train_dataset=rows)
    >>> run = wb.attach(trainer)  # in any notebook, on anyone's trainer
    >>> _ = trainer.train()
    >>> run.result()["status"]
    'finished'

    Every completion of every group, each function's scores, a row of metrics for every step, events
    and the manifest go into the run directory; in a notebook the live figure shows them. The run's
    health is checked, the first Interrupt stops after the step in flight, and `workbench control`
    steers. The trainer's numbers do not change: the same seed gives the same metrics and the same
    weights with and without this.

    A trainer of `make_trainer` gets more: `wb.continue_run` resumes from its checkpoints, its
    prompts are read once for all their completions, held-out ones are measured (`eval_every`; your
    own trainer has TRL's `eval_dataset`), and **`trainer.train()` trains all the stages of its
    plan**, each with a separate trainer.

    Args:
        trainer: a `GRPOTrainer` of TRL or Unsloth, ready to train, in one process.
        plan: the plan that `make_trainer` made it from; None: found on the trainer.
        run_name: None: the recipe's, or the trainer's own `args.run_name` or output folder.
        watchers: what shows the run; None: the live plot in a notebook, nothing elsewhere.
        runs: folder for the run directory.
        right_by: which of your functions decides that a completion is right, as in a `Task`. None:
            none does; wherever the run counts right completions it names the first function. A
            trainer of `make_trainer` has its task's.
        answer_column: the column of your dataset with the right answer; None: recognised by its
            name where that leaves no doubt.

    Raises:
        RunError: if it is not a GRPOTrainer, is attached already, or was made from another plan.
        TaskError: if `right_by` names none of its functions.
    """  # noqa: E501
    from workbench.training.theirs import TheirSession, of_theirs

    _check(trainer, plan)
    made: Made | None = vars(trainer).get(Made.KEY)
    if made and (right_by or answer_column):
        raise RunError(
            "attach(right_by=, answer_column=): this trainer was made from a plan",
            rule="its task sets both",
            remedy="Task(right_by=..., answer_column=...)",
        )
    if made:
        policy, plan, more = made.policy, made.plan, {}
        given = {**plan.stages[0].settings, "report_to": "none"}
        changed = settings_of.check_in_force(given, trainer.args)
        notes = list(dict.fromkeys([*plan.notes, *changed]))
        recipe, stages = plan.recipe, plan.stages
        for line in [*notes, *plan.sentences]:
            if line not in plan.shown:  # once is enough
                print(line)
    else:
        recipe, policy, stages, notes = of_theirs(trainer, run_name, right_by, answer_column)
        more = {"attached": True, "settings_table": []}  # who set what in their config is not known
    manifest = manifest_of(recipe, policy, stages, trainer, notes) | more
    name = run_name or recipe.run_name
    run = processes.in_main(lambda: RunDirectory.create(name, recipe, manifest, runs))
    run = processes.as_seen(run)
    try:
        if made:
            _keep_tasks(run, made.plan)
            StagedSession(run, trainer, watchers)
            _announce(run)
        else:
            TheirSession(run, trainer, stages, watchers)
            print(f"{run.name}: recorded in {shown(run.path)}", *notes, sep="\n- ")
    except BaseException:
        run.discard()
        raise
    return run


def _keep_tasks(run: RunDirectory, plan: Plan) -> None:
    # As they are now: they may be edited while the run trains, and it may go on later.
    own = [(stage.task, stage.number) for stage in plan.stages if stage.task is not plan.task]
    for task, number in [(plan.task, None), *own]:
        if task is not None and task.source and processes.is_main():
            (kept := kept_task(run, number)).parent.mkdir(exist_ok=True)
            shutil.copyfile(task.source, kept)


def _announce(run: RunDirectory) -> None:
    from workbench.training.background import announce

    announce(run)


@random_kept()
def go_on(
    run: RunDirectory, trainer: Trainer, point: Point, watchers: Watchers, notes: Sequence[str]
) -> None:
    """Attach a trainer of `make_trainer` to a run resumed from a checkpoint; `notes` are
    printed.
    """
    plan = vars(trainer)[Made.KEY].plan
    print(*plan.notes, *notes, *plan.sentences, sep="\n")
    StagedSession(run, trainer, watchers, point)
    _announce(run)


def _check(trainer: Trainer, plan: Plan | None) -> None:
    kinds = [kind.__name__ for kind in type(trainer).__mro__]
    grpo = any(kind.endswith("GRPOTrainer") for kind in kinds)
    if not grpo or not hasattr(trainer, "_calculate_rewards"):
        kind = next((kind for kind in kinds if kind.endswith("Trainer")), "")
        does = next((does for name, does in _OTHERS.items() if name in kind), "")
        about = f", which is not GRPO: {does}" if does else ""
        remedy = "pass the trainer: wb.attach(trainer)"
        if kind:
            remedy = (
                f"train without attach ({kind}'s own report_to keeps its metrics), or make a"
                " GRPOTrainer and attach that"
            )
        raise RunError(
            f"attach: an object of type {type(trainer).__name__}{about}",
            rule="the workbench attaches to a GRPOTrainer of TRL or Unsloth",
            remedy=remedy,
        )
    if isinstance(session := getattr(trainer.train, "__self__", None), Session):
        raise RunError(
            f"attach: this trainer is attached already, as {session.run.name}",
            rule="a trainer trains one run at a time",
            remedy="call trainer.train(), or make the trainer again",
        )
    made = vars(trainer).get(Made.KEY)
    if plan is not None and (made is None or made.given is not plan):
        raise RunError(
            "attach(trainer, plan): this trainer was not made from that plan",
            rule="a plan says what its own trainer trains, its stages and warm start included",
            remedy="trainer = wb.make_trainer(plan, policy); or, without it: wb.attach(trainer)",
        )
    several = trainer.accelerator.num_processes
    if several > 1 and (made is None or several != processes.count()):
        raise RunError(
            f"attach: {several} processes train together",
            rule=(
                "of several processes, a trainer made from a recipe is recorded, started by"
                " `accelerate launch` or torchrun"
            ),
            remedy="train a recipe, or on one GPU, or without attach",
        )
