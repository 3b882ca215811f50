"""The proof: an artefact, loaded back in a separate process, compared with the live policy that was
trained.

Cheapest first: sums of files, tensors, token ids, what it writes. Where a cheap level fails, the
cause is known and the expensive ones are skipped. Two fresh processes: the live policy on the run's
own backend (once per run), and the artefact as others load it, without unsloth.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from workbench.base.errors import ExportError, WorkbenchError
from workbench.base.extras import need_train
from workbench.base.progress import progress_line
from workbench.base.workspace import shown
from workbench.exporting import apart, merging, passport
from workbench.exporting.apart import Progress
from workbench.exporting.artefacts import INTO, Artefact, Exported, meant, open_artefact
from workbench.exporting.behaviour import check_behaviour, written_by
from workbench.exporting.checks import LEVELS, Check, Proof, Proofs
from workbench.exporting.public import public_name
from workbench.exporting.reading import BaseUnread, open_reader
from workbench.exporting.reference import (
    ProofRequest,
    Reference,
    Written,
    measured_reference,
    request_of,
    suite_of_run,
)
from workbench.exporting.tokens import check_tokens
from workbench.exporting.weights import check_weights
from workbench.run import sealed
from workbench.run.directory import RunDirectory
from workbench.task import Task

_NO_MEMORY = re.compile(r"out of memory|MemoryError|allocate memory", re.IGNORECASE)
_ENGINES = (
    "the kernels of vLLM, and of other software on a GPU: they round in their own ways, and were"
    " not run here"
)
_ON_16_BITS = (
    "the adapter on the 16-bit base, which is how vLLM loads it: `merged_16bit`, made with `--into"
    " base`, is that sum"
)
_OLLAMA = "Ollama's template, which it takes from the file if it knows it: Ollama was not run here"


def prove(
    artefact: Artefact | Exported | str | Path,
    *,
    prompts: int = 64,
    run: RunDirectory | None = None,
    task: Task | None = None,
    progress: Callable[[str], Progress] = progress_line,
) -> Proof | Proofs:
    """Compare an artefact with the policy that its run trained, cheapest check first; leaves
    `proof.json` beside it.

    >>> proof = wb.prove(wb.export(wb.open_run())["adapter"], prompts=16)
    >>> proof.passed, proof.failed
    (True, [])

    Args:
        artefact: one; all that `export` made; the folder of either; or a run, by its folder or
            name.
        prompts: this many of the task's held-out prompts, the first ones; with fewer than 10,
            damage cannot be told from chance.
        run: the run that it was made from, where its folder does not tell.
        task: the run's task; None: the one that it started with.

    Raises:
        ExportError: if it is not an artefact, its run is not known, or the live policy cannot be
            measured.
        RunError: if its run is one of your own trainer, and `task` is None.
        DataError: if the task has no held-out prompts.
    """
    if prompts < 2:
        raise ExportError(
            f"prompts = {prompts}",
            rule="a proof needs at least 2 held-out prompts",
            remedy="give 10 or more",
        )
    of_run: object = isinstance(artefact, Exported)
    if isinstance(artefact, Exported):
        chosen = [*artefact.artefacts.values()]
    elif isinstance(artefact, Artefact):
        chosen = [artefact]
    else:
        of_run, folders = meant(artefact)
        chosen = [open_artefact(each, of_run or run) for each in folders]
    references: dict[Path, Reference] = {}  # the live policy of a run is measured once
    proofs = Proofs(_prove(each, prompts, task, progress, references) for each in chosen)
    return proofs if of_run else proofs[0]


def _prove(
    artefact: Artefact,
    prompts: int,
    task: Task | None,
    progress: Callable[[str], Progress],
    references: dict[Path, Reference],
) -> Proof:
    run = artefact.run
    if run is None:
        raise ExportError(
            f"{shown(artefact.path)}: the run that it was made from is not here",
            rule="an artefact is compared with the policy of its run",
            remedy="give the run: run=wb.open_run(...), --run",
        )
    need_train()
    sealed.as_saved(run.adapter)
    sealed.check_told(run)
    with contextlib.closing(suite_of_run(run, task)) as suite:
        request = replace(request_of(run, suite, prompts), artefact=artefact)
        checks, measured, reference = [_files(artefact), _base(artefact, run)], {}, None
        if _sound(checks):
            if run.path not in references:
                references[run.path] = measured_reference(suite, request, progress)
            reference = references[run.path]
            request = replace(request, sampled_ids=reference.sampled_ids)
        # A process that was killed, or had no memory, says nothing of the artefact: that is raised,
        # and no proof is written.
        report = apart.run_apart(examine, request, progress(artefact.format))
        checks += report.checks
        if reference and report.written:
            vouched = all(each.passed for each in checks if each.level == "weights")
            more, measured = check_behaviour(artefact, report.written, reference, suite, vouched)
            checks += more
    proof = Proof(
        shown(artefact.path),
        artefact.format,
        tuple(checks),
        tuple(_unproven(artefact, run, checks, report.unproven)),
        measured,
        "" if artefact.format == "adapter" else INTO.get(artefact.into, ""),
    )
    return _recorded(artefact, proof)


def _unproven(
    artefact: Artefact, run: RunDirectory, checks: list[Check], found: list[str]
) -> list[str]:
    why = "it could not be loaded here" if _sound(checks) else "a cheaper check failed"
    levels = {each.level for each in checks}
    lines = [f"{level}: not checked, as {why}" for level in LEVELS if level not in levels]
    lines += [*found, _OLLAMA if artefact.format.startswith("gguf") else _ENGINES]
    if line := sealed.unsummed(run):
        lines.append(line)
    if artefact.format == "adapter" and run.manifest()["policy"].get("precision") == "nf4":
        lines.append(_ON_16_BITS)
    return lines


def _sound(checks: list[Check]) -> bool:
    return all(check.passed is not False for check in checks)


def _recorded(artefact: Artefact, proof: Proof) -> Proof:
    # The proof on record stays where it saw more; one that failed is recorded all the same.
    try:
        record = passport.read_passport(artefact.path).get("proof") or {}
    except ExportError:  # a passport that was changed takes no proof
        return proof
    seen = record.get("measured", {}).get("prompts", 0)
    fewer = proof.measured.get("prompts", 0) < seen
    if not proof.passed or not fewer:
        passport.add_proof(artefact, proof)
        return proof
    if record["passed"]:
        return replace(proof, note=f"the proof on record, over {seen} prompts, was kept")
    # of the same files: fewer prompts see less
    cause = next(each["cause"] for each in record["checks"] if each["passed"] is False)
    name, again = f"the proof on record, over {seen} prompts", f"prove it over {seen} prompts again"
    failed = Check("behaviour", name, False, "FAILED", cause, again)
    return replace(proof, checks=(*proof.checks, failed))


def _files(artefact: Artefact) -> Check:
    name, again = "sums of its files", "export it again, with --overwrite, or put the file back"
    try:
        changed = ", ".join(passport.changed_files(artefact.path))
        wrong = changed and f"not as exported: {changed}"
    except ExportError as error:
        wrong = error.value
    if wrong:
        return Check("files", name, False, wrong, "changed_file", again)
    count = len(passport.read_passport(artefact.path)["files"])
    return Check("files", name, True, f"{count} files and the passport are as exported")


def _base(artefact: Artefact, run: RunDirectory) -> Check:
    source, differs = merging.source_of(run), merging.merge_base_differs(run)
    name, base = "the base that it was trained on", public_name(source)
    if differs:
        found = f"{base} is not as the run loaded it: {differs}"
        return Check("files", name, False, found, "wrong_base", merging.PUT_BACK)
    if differs is None:
        found = f"{base}: what the run loaded is not on record, or not here"
        return Check("files", name, None, found)
    found = f"{base} is as the run loaded it"
    if artefact.format != "adapter" and artefact.into == "base" and artefact.base != source:
        return Check("files", name, None, f"{found}; its 16-bit base is not on record")
    return Check("files", name, True, found)


def _unloaded(error: WorkbenchError) -> Check:
    if _NO_MEMORY.search(error.value):
        raise ExportError(
            error.value,
            rule="an artefact is proven where it has room",
            remedy="free memory (on a GPU, end other notebooks' kernels first), and prove it again",
        ) from error
    if isinstance(error, BaseUnread):
        found = f"its base cannot be loaded here: {error.value}"
        return Check("tokens", "loads", None, found)
    return Check("tokens", "loads", False, error.value, "unreadable", error.remedy)


class Examined(NamedTuple):
    """The findings of the artefact's process."""

    checks: list[Check]
    written: Written | None  # None: a check failed, or nobody asked
    unproven: list[str]


def examine(request: ProofRequest, progress: Progress) -> Examined:
    """In the artefact's process: tensors and token ids; and, where nothing failed, what it
    writes.
    """
    artefact, written, unproven = request.artefact, None, []
    assert artefact is not None
    checks = check_weights(artefact)
    try:
        reader = open_reader(artefact)
    except WorkbenchError as error:
        return Examined([*checks, _unloaded(error)], None, [])
    checks += check_tokens(artefact, reader)
    of_base = getattr(reader, "of_base", reader.ends)
    if {*of_base} != {*reader.ends}:
        theirs, own = (merging.one_or_list(sorted(ends)) for ends in (of_base, reader.ends))
        unproven.append(
            f"PEFT takes EOS from the base's generation_config.json, which says {theirs}; the"
            f" adapter's says {own}: generate with eos_token_id={own}"
        )
    if request.sampled_ids is not None and _sound(checks):
        written = written_by(reader, request, progress)
    return Examined(checks, written, unproven)
