"""The commands after training: what a run gained, and leaving with the model."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import workbench as wb
from workbench.base.workspace import find, shown
from workbench.commands.command import Result, as_flags, command, open_named


@command("04 Inspect")
def eval_(run: str, checkpoints: str | None, **options: Any) -> Result:
    """Measure whether a run's policy is better than its base.

    Both are sampled on the same held-out prompts, as in training, and compared. Reports the gain
    with its 95 % interval, and how many more prompts it takes where that contains 0; pass@k,
    majority vote and best of n; and whether the run taught (it solves prompts that its base does
    not solve in n tries) or sharpened (it solves at once what its base solves sometimes). Leaves
    evaluation.json and, in evaluation.parquet, every completion; what is there already is not
    measured again.

    Exits with 1 unless the gain's interval lies above 0.

    Examples: `workbench eval latest --held-out 80 --samples 16 --greedy`, `workbench eval demo
    --checkpoints all --json`.

    Args:
        RUN = latest: A run by name or path; latest: the last that ended with an adapter.

    Options:
        --held-out N = 200 [2..]: At most this many held-out prompts.
        --samples N = 4 [1..]: Completions per prompt; 16 or more tell whether it was taught or
            sharpened.
        --greedy: Also take the likeliest tokens: one completion per prompt.
        --checkpoints TEXT: Steps of checkpoints to measure also, such as 20,40; best; or all.
        --seed N = 0: The same seed gives the same completions on the same machine.
    """
    from workbench.views.terminal import progress

    opened = open_named(run, "trained")
    steps: Any = "all"
    if checkpoints != steps:
        steps = [step for step in (checkpoints or "").split(",") if step]
    with progress("prompts sampled", "eval") as bar:
        evaluation = wb.evaluate(opened, checkpoints=steps, progress=bar, **options)
    return Result(evaluation.found, evaluation, int(not evaluation.found["gain"]["low"] > 0))


@command("04 Inspect")
def report(run: str, out: Path | None, **options: Any) -> Result:
    """Write one page on a run: what it gained, fixed and broke.

    Is it better, was it taught or sharpened, is it healthy? Made from the record and from the last
    `workbench eval`; no model is loaded. The page holds all that it shows: no script, nothing
    fetched from a network, so it can be mailed or kept beside the run.

    Examples: `workbench report`, `workbench report demo --markdown --out demo.md`.

    Args:
        RUN = latest: A run, by name or path.

    Options:
        --markdown: Text without figures, report.md, for a pull request or an issue.
        --answer-column TEXT: The dataset column with the right answer, where its name does not
            tell.
        --out PATH: The file to write; by default in the run's folder.
    """
    from workbench.commands.reporting import write_report

    file = write_report(open_named(run, "recorded"), out, **options)
    return Result({"report": str(file)}, f"written: {shown(file)}")


@command(
    "05 Export",
    aborted="finished formats stay in export/, partial ones are removed; the same command makes the"
    " rest",
)
def export(
    run: str, formats: list[str] | None, best: bool | None, push: str | None, **options: Any
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
        RUN = latest: A run by name or path; latest: the last that ended with an adapter.

    Options:
        --format FORMAT... as formats: adapter, merged_16bit, merged_4bit, or a gguf_... format;
            gguf is all three of those; may be repeated.
        --into TEXT = auto: Merge into base (16 bits), or dequantised (4-bit weights in 16
            bits); auto: by risk.
        --overwrite: Replace an existing export.
        --best / --no-best: From now on the run's adapter is the best that eval_every kept; or
            the final one.
        --push OWNER/NAME: Upload it to the hub, private; needs one --format, proven.
    """
    from workbench.base.errors import ExportError
    from workbench.exporting import making, pushing
    from workbench.views.terminal import progress

    chosen = formats or ["adapter", "merged_16bit"]
    for folder in find(run).parents[:2]:
        if (folder / "manifest.json").is_file():
            raise ExportError(
                f"{run}: a folder of run {folder.name}",
                rule="what is exported is a run",
                remedy=f"`workbench export {folder.name}`; `workbench prove {run}` proves what is"
                " there",
            )
    made = making.in_order(chosen, options["into"])
    if push and (len(chosen) > 1 or chosen == ["gguf"]):
        raise ExportError(
            f"--push with {', '.join(chosen)}",
            rule="a repository holds one artefact",
            remedy="give one --format with --push",
        )
    opened = open_named(run, "trained")
    if best is not None:
        opened.use_best(best)
    try:
        with progress("artefacts", "export") as bar:
            made = making.export(opened, chosen, progress=bar, **options)
        address = pushing.push(made[chosen[0]], push) if push else None
    except ExportError as error:
        refusal = {"refused": error.value, "rule": error.rule, "remedy": as_flags(error.remedy)}
        return Result(refusal, f"refused: {as_flags(str(error))}", 1)
    return Result(
        made.found() | {"pushed": address}, f"{made}\npushed to {address}" if address else made
    )


@command(
    "05 Export",
    aborted="proven artefacts keep their proof.json; the same command starts the rest again",
)
def prove(artefact: str, run: str | None, task: str | None, prompts: int) -> Result:
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
        ARTEFACT: An artefact's folder; or a run by name or path: all its exports.

    Options:
        --run TEXT: The run that it was made from, where its folder does not tell.
        --prompts N = 64 [2..]: Held-out prompts; with fewer than 10, damage cannot be told from
            chance.
        --task TEXT: The run's task, where the original cannot be loaded.
    """
    from workbench.exporting.checks import Proofs
    from workbench.views.terminal import Bar

    with Bar("") as bar:

        def begun(name: str) -> Callable[[int, int], None]:
            row = bar.add_task(name, total=None, numbers="")
            if not bar.console.is_terminal:
                print(f"proving {name}", file=sys.stderr, flush=True)
            return lambda done, total: bar.update(row, completed=done, total=total or None)

        proof = wb.prove(
            artefact,
            run=run and wb.open_run(run),
            prompts=prompts,
            task=task and wb.load_task(task),
            progress=begun,
        )
    proofs = proof if isinstance(proof, Proofs) else Proofs([proof])
    data = {"passed": proofs.passed, "proofs": [each.for_scripts() for each in proofs]}
    return Result(data, proofs, int(not proofs.passed))


@command("05 Export")
def ask(artefact: str, question: str, system: str | None, temperature: float, base: bool) -> Result:
    """Ask an exported model one question.

    It answers from the artefact's own files; `wb.chat` is the same in a notebook.

    Example: `workbench ask latest "What is 15 + 27?" --base`.

    Args:
        ARTEFACT: An artefact's folder; or a run by name or path: of its exports, merged_16bit
            comes first.
        QUESTION: What to ask, in quotes.

    Options:
        --system TEXT: System prompt, instead of the one used in training; '': none.
        --temperature NUMBER = 0 [0..]: 0 takes the likeliest token every time.
        --base: Also ask the base.
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


@command("05 Export")
def verify(path: str) -> Result:
    """Check that an export is still what was exported.

    Compares every byte of its files with its passport, and also the run, if it is still there.
    Exits with 1 if something differs.

    Examples: `workbench verify demo`, `workbench verify runs/demo/export/merged_16bit`.

    Args:
        PATH: An artefact's folder, its passport.json; or a run by name or path: all its
            artefacts.
    """
    from workbench.exporting.passport import verify as verify_it

    artefacts = verify_it(path)
    passed = all(each.passed for each in artefacts)
    data = {"passed": passed, "artefacts": artefacts}
    return Result(data, "\n".join(map(str, artefacts)), int(not passed))
