"""The commands for rows and rewards, before anything is trained."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from typing import Any

import workbench as wb
from workbench.base.errors import PolicyError
from workbench.base.instruments import plugged
from workbench.base.kinds import Fields
from workbench.commands.command import Result, command, open_named, weights_of


@command("01 Dataset")
def check(source: str, answer_after: str, **options: Any) -> Result:
    """Check a dataset: which rows can be used, and why not the others.

    Every row is kept, repaired by a stated rule, or listed with its reason. Nothing is loaded on a
    GPU. Names like question or ground_truth are used for the prompt and the answer if there is no
    doubt, and the report says so; --prompt and --answer choose. Exits with 1 if no row could be
    kept.

    Examples: `workbench check train.jsonl`, `workbench check questions.csv --answer expert_answer
    --out tasks/mine/train.jsonl`, `workbench check openai/gsm8k --numbers --policy tiny --system
    tags`.

    Args:
        SOURCE: A .jsonl, .json, .csv, .tsv, .parquet or .py file, a folder, owner/name, or a
            name that ships.

    Options:
        --prompt TEXT as prompt_column: Column that holds the prompt;
            "{instruction}\\n\\n{input}" joins columns.
        --answer TEXT as answer_column: Column of the answer, or a field in one
            (reward_model.ground_truth); assistant: the assistant's last turn; none: no answers.
        --subset TEXT: Subset (configuration) of a hub dataset.
        --split TEXT: Split of a hub dataset or folder; default: train.
        --answer-after TEXT = auto: Mark before the answer; auto: it is taken out of its tag,
            box, #### or choice, and labels are spelt alike; none: it stays as it is.
        --numbers: Leave out rows whose answer is not a number.
        --other TEXT: Rows of the other split: prompts that occur there are left out.
        --out PATH: Write the kept rows here, as JSON lines.
        --policy TEXT: Measure prompts with its template, tokenizer: tiny, smollm2, owner/name,
            a folder.
        --chat-template-kwargs JSON: With --policy, as in the recipe's grpo:
            '{"enable_thinking": false}'.
        --system TEXT = none: System message for prompts that are text: tags, think, mark, none,
            or your text.
    """
    from workbench.commands.checking import check_source
    from workbench.views.terminal import progress

    after = None if answer_after == "none" else answer_after
    # How many rows there are is not known, so a count is of use only to someone who watches it.
    with progress("rows") if sys.stderr.isatty() else contextlib.nullcontext() as bar:
        checked = check_source(source, answer_after=after, progress=bar, **options)
    return Result(checked.found(), checked, int(not checked.report.kept_rows))


@command("02 Rewards")
def probe(
    task: str,
    policy: str | None,
    chat_template_kwargs: str | None,
    weight: list[str] | None,
    rollouts: int,
    max_completion_length: int,
    **options: Any,
) -> Result:
    """Find rewards that cannot pay, and what reward hacks earn.

    It takes seconds on a CPU, before any training. From the task's own prompts it makes the
    completion that an honest policy would write, the reference, and more than twenty that a policy
    would love to get away with (empty tags, several answers, padding, refusal, cut before the
    closing tag, ...), and scores them all. It names the function that cannot pay, with the line
    that nothing reaches, and the reward hack that earns as much as the reference completion.
    Regression cases (completion -> expected scores) are checked too.

    Where the reference completion cannot be read off the prompt, the task gives it:
    Task(ideal=lambda row: ...). Your own reward hacks: Task(probes={name: text or function of the
    row}).

    Where the task has an environment, the starts of a group are compared: a member that begins in a
    luckier state is rewarded for it. --rollouts measures how much of the reward is such luck.

    Exits with 1 if a reward cannot pay or fails, if a reward hack earns at least what the reference
    completion earns, if `reset` raises, or if a regression case does not hold.

    Examples: `workbench probe arithmetic --policy tiny`, `workbench probe tasks/mine/task.py
    --json`.

    Args:
        TASK: A task file, or the name of a task that ships.

    Options:
        --policy TEXT: Pass the reference through its template, tokenizer: tiny, smollm2,
            owner/name, or a folder.
        --chat-template-kwargs JSON: With --policy, as in the recipe's grpo:
            '{"enable_thinking": false}'.
        --prompts N as rows = 6 [1..]: Prompts to try, spread over the task's.
        --weight FUNCTION=NUMBER...: Another weight for a function; may be repeated.
        --max-completion-length N = 512 [1..]: Tokens that a completion may have.
        --cases TEXT: File of regression cases; default: cases.jsonl beside the task file.
        --deadline NUMBER as deadline_s = 10 [0.1..]: Seconds per function for all completions
            (a judge may need minutes), and per call of an environment.
        --rollouts N = 0 [0..]: With --policy: play this many from each of 8 starts of 16
            prompts; try 8.
    """
    from workbench.commands.checking import tokenizer_of
    from workbench.recipe import template_kwargs
    from workbench.views.audit import audit_view
    from workbench.views.terminal import progress

    if rollouts and policy is None:
        raise PolicyError(
            "--rollouts without --policy",
            rule="a policy plays the rollouts",
            remedy="--policy tiny, owner/name, or a folder",
        )
    luck_finding = plugged("probe").get("rollouts") if rollouts else None
    if rollouts and luck_finding is None:
        raise PolicyError(
            f"--rollouts {rollouts}",
            rule="the instrument `games` plays them, and it is not installed",
            remedy="leave the option out",
        )
    shared: Fields = {"weights": weights_of(weight), "max_completion_length": max_completion_length}
    tokenizer = tokenizer_of(policy, chat_template_kwargs)
    with progress("functions") as bar:
        audit = wb.audit_rewards(task, tokenizer=tokenizer, progress=bar, **shared, **options)
    if luck_finding is not None:
        loaded = wb.load_policy(
            policy,
            chat_template_kwargs=template_kwargs(chat_template_kwargs, "chat_template_kwargs"),
            max_seq_length=max_completion_length + 1024,
        )
        with progress("prompts") as bar:
            luck = luck_finding(
                loaded, wb.load_task(task), per_start=rollouts, progress=bar, **shared
            )
        audit = dataclasses.replace(audit, findings=[luck, *audit.findings])
    return Result(audit.found(), audit_view(audit, chart=False), int(not audit.ok))


@command("02 Rewards")
def replay(run: str, task: str, weight: list[str] | None, **options: Any) -> Result:
    """Score a run's completions again with edited rewards.

    Shows which advantages change sign, which dead groups come alive, how well the order within
    groups is kept, each function's share of the advantages, and which function now decides, with
    the old and new reward hashes. Nothing is trained, and no GPU is needed.

    It shows what the gradients of these batches would have favoured, not what a new run would
    reach: a policy trained under the new rewards would have written other completions.

    Examples: `workbench replay latest --task tasks/mine/task.py`, `workbench replay demo --task
    arithmetic --weight length_reward=0 --out changed.parquet`, `workbench replay demo --task
    arithmetic --aggregation normalize_then_sum`.

    Args:
        RUN: A run by name or path; latest: the last that recorded completions.

    Options:
        --task TEXT = ...: The edited task: a task file, or the name of a task that ships.
        --weight FUNCTION=NUMBER...: Another weight for a function; may be repeated.
        --aggregation TEXT: sum_then_normalize or normalize_then_sum (GDPO), instead of the
            run's multi_objective_aggregation.
        --out PATH: Write old and new advantage of every completion here, side by side
            (Parquet).
        --limit N [1..]: Stop after this many replayed completions, from the first step on.
    """
    from workbench.views.replay import replay_view
    from workbench.views.terminal import progress

    weights, opened = weights_of(weight), open_named(run, "recorded")
    with progress("completions") as bar:
        changes = wb.replay(opened, task, weights, progress=bar, **options)
    return Result(changes.found(), replay_view(changes, charts=False))
