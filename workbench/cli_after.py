"""The commands after training: what a run gained, and leaving with the model."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import workbench as wb
from workbench.command import (
    Result,
    Weight,
    Words,
    as_flags,
    command,
    open_named,
    weights_of,
)
from workbench.errors import RequestError
from workbench.workspace import find, shown


@command(least={"limit": 1})
def replay(
    run: str,
    *,
    task: str,
    weight: Weight = None,
    aggregation: str | None = None,
    out: Path | None = None,
    limit: int | None = None,
) -> Result:
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
        run: A run by name or path; latest: the last that recorded completions.
        task: The edited task: a task file, or the name of a task that ships.
        aggregation: sum_then_normalize or normalize_then_sum (GDPO), instead of the run's
            multi_objective_aggregation.
        out: Write old and new advantage of every completion here, side by side (Parquet).
        limit: Stop after this many replayed completions, from the first step on.
    """
    from workbench.views.replay import replay_view
    from workbench.views.terminal import progress

    with progress("completions") as bar:
        changes = wb.replay(
            open_named(run, "recorded"),
            task,
            weights_of(weight),
            aggregation=aggregation,
            out=out,
            limit=limit,
            progress=bar,
        )
    return Result(changes.found(), replay_view(changes, charts=False))


@command("eval", least={"held_out": 2, "samples": 1})
def eval_(
    run: str = "latest",
    *,
    held_out: int = 200,
    samples: int = 4,
    greedy: bool = False,
    checkpoints: str = "",
    levels: bool = False,
    seed: int = 0,
) -> Result:
    """Measure whether a run's policy is better than its base.

    Both are sampled on the same held-out prompts, as in training, and compared. Reports the gain
    with its 95 % interval, and how many more prompts it takes where that contains 0; pass@k,
    majority vote and best of n; and whether the run taught (it solves prompts that its base does
    not solve in n tries) or sharpened (it solves at once what its base solves sometimes). Leaves
    evaluation.json and, in evaluation.parquet, every completion; what is there already is not
    measured again.

    Exits with 1 unless the gain's interval lies above 0; with --levels: at the level above the
    trained one.

    Examples: `workbench eval latest --held-out 80 --samples 16 --greedy`, `workbench eval demo
    --checkpoints all --json`.

    Args:
        run: A run by name or path; latest: the last that ended with an adapter.
        held_out: At most this many held-out prompts.
        samples: Completions per prompt; 16 or more tell whether it was taught or sharpened.
        greedy: Also take the likeliest tokens: one completion per prompt.
        checkpoints: Steps of checkpoints to measure also, such as 20,40; best; or all.
        levels: Measure the levels around and above the trained one instead, for a task
            reasoning_gym/NAME@LEVEL.
        seed: The same seed gives the same completions on the same machine.
    """
    from workbench.views.terminal import progress

    steps = (
        checkpoints if checkpoints == "all" else [step for step in checkpoints.split(",") if step]
    )
    opened = open_named(run, "trained")
    if levels:
        if greedy or checkpoints:
            raise RequestError(
                f"--levels with {'--greedy' if greedy else '--checkpoints'}",
                rule="over levels, base and trained are sampled at the run's temperature",
                remedy="leave one of them out",
            )
        with progress("passes", "eval") as bar:
            over = wb.inspection.over_levels(
                opened, held_out=held_out, samples=samples, seed=seed, progress=bar
            )
        return Result(over.found, over, int(not over.reaches))
    with progress("prompts sampled", "eval") as bar:
        evaluation = wb.evaluate(
            opened,
            held_out=held_out,
            samples=samples,
            greedy=greedy,
            checkpoints=steps,
            seed=seed,
            progress=bar,
        )
    return Result(evaluation.found, evaluation, int(not evaluation.found["gain"]["low"] > 0))


@command(
    least={"budget": 1, "steps": 1, "held_out": 2, "seed": 0},
    aborted="finished runs are kept; the same command resumes the duel",
)
def duel(
    recipes: list[str],
    *,
    budget: int = 6000,
    steps: int | None = None,
    held_out: int | None = None,
    seed: int = 1,
    name: str | None = None,
    plan: bool = False,
) -> Result:
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
        recipes: Two or more recipe files, or presets.
        budget: Completions that training may sample, all runs together.
        steps: Steps of a run of the first recipe; default: as leave 6 runs for each.
        held_out: Held-out prompts that each run measures; default: the first recipe's.
        seed: The first seed.
        name: Name of the folder under runs/; default: the recipes' names.
        plan: Show what it would train, and exit.
    """
    from workbench.decide.duel import fight, plan_duel
    from workbench.views.duel import DuelProgress, duel_picture
    from workbench.views.figure import png
    from workbench.workspace import replace_file

    planned = plan_duel(
        *recipes, budget=budget, steps=steps, held_out=held_out, seed=seed, name=name
    )
    if plan:
        return Result(planned.asked, planned)
    print(planned, file=sys.stderr)
    shown_by = DuelProgress(planned)
    with shown_by.bar:
        fought = fight(planned, watchers=[shown_by], on_pair=shown_by.pair)
    with replace_file(planned.folder / "duel.png") as beside:
        beside.write_bytes(png(duel_picture(fought).figure))
    return Result(fought.found, fought, int(not fought.called))


@command(least={"steps": 1}, aborted="the twin is kept; the same command resumes it")
def twin(
    run: str = "latest",
    *,
    mute: str | None = None,
    patch: str | None = None,
    checkpoint: str | None = None,
    steps: int | None = None,
    sign: str | None = None,
    plan: bool = False,
) -> Result:
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
        run: A run that has ended, by name or path; latest: the last that recorded completions.
        mute (--mute FUNCTION): The reward function to give the weight 0.
        patch (--patch FILE): The run's task file with an edited reward function, instead.
        checkpoint (--from NAME): Begin here, such as checkpoint-20, or base.
        steps: Steps after that; default: as far as the original got.
        sign (--sign SQL): What grew, an expression over the record's columns; more is worse.
        plan: Show what it would train, and exit.
    """
    from workbench.decide.twin import grow, plan_twin
    from workbench.views.figure import png
    from workbench.views.terminal import TerminalProgress
    from workbench.views.twin import twin_picture
    from workbench.workspace import replace_file

    planned = plan_twin(
        open_named(run, "recorded"),
        mute=mute,
        patch=patch,
        checkpoint=checkpoint,
        steps=steps,
        sign=sign,
    )
    if plan:
        return Result(planned.asked | {"sign": planned.sign.sql}, planned)
    print(planned, file=sys.stderr)
    grown = grow(planned, watchers=[TerminalProgress()])
    with replace_file(planned.folder / "twin.png") as beside:
        beside.write_bytes(png(twin_picture(grown).figure))
    return Result(grown.found, grown, int(grown.verdict == "cannot be told"))


@command()
def report(
    run: str = "latest",
    *,
    markdown: bool = False,
    answer_column: str | None = None,
    eval_logs: bool = False,
    out: Path | None = None,
) -> Result:
    """Write one page on a run: what it gained, fixed and broke.

    Is it better, was it taught or sharpened, is it healthy? Made from the record and from the last
    `workbench eval`; no model is loaded. The page holds all that it shows: no script, nothing
    fetched from a network, so it can be mailed or kept beside the run.

    Examples: `workbench report`, `workbench report demo --markdown --out demo.md`.

    Args:
        run: A run, by name or path.
        markdown: Text without figures, report.md, for a pull request or an issue.
        answer_column: The dataset column with the right answer, where its name does not tell.
        eval_logs: What `workbench eval` measured, as logs for inspect_ai's viewer, instead.
        out: The file (or folder of logs) to write; by default in the run's folder.
    """
    from workbench.reporting import write_report

    if eval_logs:
        from workbench.inspection.eval_logs import write_eval_log

        files = write_eval_log(open_named(run, "recorded"), out)
        lines = [f"written: {shown(file)}" for file in files]
        lines.append(f"look: inspect view --log-dir {shown(files[0].parent)}")
        return Result({"eval_logs": files}, "\n".join(lines))
    file = write_report(
        open_named(run, "recorded"), out, markdown=markdown, answer_column=answer_column
    )
    return Result({"report": str(file)}, f"written: {shown(file)}")


@command(
    aborted="finished formats stay in export/, partial ones are removed; the same command makes the"
    " rest"
)
def export(
    run: str = "latest",
    *,
    formats: Words = None,
    into: str = "auto",
    overwrite: bool = False,
    best: bool | None = None,
    push: str | None = None,
) -> Result:
    """Write a run's policy for other programs: adapter, merged, GGUF.

    It goes into runs/RUN/export/FORMAT, each format atomically.

    adapter: for PEFT and vLLM, beside the 16-bit base. merged_16bit: a standalone model, for
    transformers, vLLM and MLX. merged_4bit: the same in NF4. gguf: for llama.cpp and Ollama, as
    gguf_f16, gguf_q8_0 and gguf_q4_k_m. Without --format: adapter and merged_16bit. An existing
    export of the same adapter is kept.

    Exits with 1 if it is refused: another export in its place, no room, a missing tool, not proven.

    Examples: `workbench export`, `workbench export demo --format gguf_q4_k_m --push me/sums`.

    Args:
        run: A run by name or path; latest: the last that ended with an adapter.
        formats (--format FORMAT): adapter, merged_16bit, merged_4bit, or a gguf_... format; gguf
            is all three of those; may be repeated.
        into: Merge into base (16 bits), or dequantised (4-bit weights in 16 bits); auto: by
            risk.
        overwrite: Replace an existing export.
        best: From now on the run's adapter is the best that eval_every kept; or the final one.
        push (--push OWNER/NAME): Upload it to the hub, private; needs one --format, proven.
    """
    from workbench.errors import ExportError
    from workbench.exporting import making, pushing
    from workbench.views.terminal import progress

    chosen = formats or ["adapter", "merged_16bit"]
    if of := next(
        (up.name for up in find(run).parents[:2] if (up / "manifest.json").is_file()), ""
    ):
        remedy = f"`workbench export {of}`; `workbench prove {run}` proves what is there"
        raise ExportError(
            f"{run}: a folder of run {of}", rule="what is exported is a run", remedy=remedy
        )
    if making.in_order(chosen, into) and push and (len(chosen) > 1 or chosen == ["gguf"]):
        rule, remedy = "a repository holds one artefact", "give one --format with --push"
        raise ExportError(f"--push with {', '.join(chosen)}", rule=rule, remedy=remedy)
    opened = open_named(run, "trained")
    if best is not None:
        opened.use_best(best)
    try:
        with progress("artefacts", "export") as bar:
            made = making.export(opened, chosen, into=into, overwrite=overwrite, progress=bar)
        address = pushing.push(made[chosen[0]], push) if push else None
    except ExportError as error:
        refusal = {"refused": error.value, "rule": error.rule, "remedy": as_flags(error.remedy)}
        return Result(refusal, f"refused: {as_flags(str(error))}", 1)
    return Result(
        made.found() | {"pushed": address}, f"{made}\npushed to {address}" if address else made
    )


@command(
    aborted="proven artefacts keep their proof.json; the same command starts the rest again",
    least={"prompts": 2},
)
def prove(
    artefact: str, *, run: str | None = None, prompts: int = 64, task: str | None = None
) -> Result:
    """Prove that an export is the policy that was trained.

    It is loaded back in a separate process, and compared with the live policy. From cheap to dear:
    sums of its files; tensors, layer by layer; token ids; then what it writes: the probabilities of
    completions that the policy sampled, and greedy answers to held-out prompts, rewarded as in
    training, with intervals. Quantised formats are measured, and fail only where they equal the
    base, do not end, or cost more than 5 points beyond chance. What cannot be told here is listed,
    not failed. Leaves proof.json beside the artefact.

    Exits with 1 if one fails; the cause and the remedy are in the text.

    Examples: `workbench prove latest`, `workbench prove runs/demo/export/gguf_q4_k_m --json`.

    Args:
        artefact: An artefact's folder; or a run by name or path: all its exports.
        run: The run that it was made from, where its folder does not tell.
        prompts: Held-out prompts; with fewer than 10, damage cannot be told from chance.
        task: The run's task, where the original cannot be loaded.
    """
    from workbench.exporting.checks import Proofs
    from workbench.views.terminal import Bar

    known = None if run is None else wb.open_run(run)
    with Bar("") as bar:

        def begun(name: str) -> Callable[[int, int], None]:
            row = bar.add_task(name, total=None, numbers="")
            if not bar.console.is_terminal:
                print(f"proving {name}", file=sys.stderr, flush=True)
            return lambda done, total: bar.update(row, completed=done, total=total or None)

        proof = wb.prove(
            artefact,
            run=known,
            prompts=prompts,
            task=wb.load_task(task) if task else None,
            progress=begun,
        )
    proofs = proof if isinstance(proof, Proofs) else Proofs([proof])
    data = {"passed": proofs.passed, "proofs": [each.for_scripts() for each in proofs]}
    return Result(data, proofs, int(not proofs.passed))


@command(least={"temperature": 0})
def ask(
    artefact: str,
    question: str,
    *,
    system: str | None = None,
    temperature: float = 0.0,
    base: bool = False,
) -> Result:
    """Ask an exported model one question.

    It answers from the artefact's own files; `wb.chat` is the same in a notebook.

    Example: `workbench ask latest "What is 15 + 27?" --base`.

    Args:
        artefact: An artefact's folder; or a run by name or path: of its exports, merged_16bit
            comes first.
        question: What to ask, in quotes.
        system: System prompt, instead of the one used in training; '': none.
        temperature: 0 takes the likeliest token every time.
        base: Also ask the base.
    """
    from workbench.exporting.artefacts import meant
    from workbench.exporting.chat import Exchange

    folders = meant(artefact)[1]
    folder = next((each for each in folders if each.name == "merged_16bit"), folders[0])
    asked = Exchange(folder, system)
    answers = {"trained": asked.answer(question, temperature)}
    if base:
        answers["base"] = asked.answer(question, temperature, base=True)
    said = (
        f"[{who}: {one.length_tokens} tokens, {one.ended}]\n{one.text}"
        for who, one in answers.items()
    )
    return Result({"artefact": folder, "question": question, "answers": answers}, "\n".join(said))


@command()
def verify(path: str) -> Result:
    """Check that an export is still what was exported.

    Compares every byte of its files with its passport, and also the run, if it is still there.
    Exits with 1 if something differs.

    Examples: `workbench verify demo`, `workbench verify runs/demo/export/merged_16bit`.

    Args:
        path: An artefact's folder, its passport.json; or a run by name or path: all its
            artefacts.
    """
    from workbench.exporting.passport import verify as verify_it

    artefacts = verify_it(path)
    passed = all(each.passed for each in artefacts)
    return Result(
        {"passed": passed, "artefacts": artefacts}, "\n".join(map(str, artefacts)), int(not passed)
    )
