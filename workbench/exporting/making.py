"""Making a run's artefacts: each is checked for room, staged beside its place, and renamed into
place when it is whole.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path

from workbench.base.errors import DiskError, ExportError, nearest
from workbench.base.extras import need_train
from workbench.base.progress import progress_line
from workbench.base.workspace import made, replace_folder, shown, written
from workbench.exporting import gguf, merging, passport, serving
from workbench.exporting.artefacts import FORMATS, INTO, Artefact, Exported
from workbench.exporting.public import public_name
from workbench.exporting.risk import MergeRisk, merge_risk
from workbench.run import sealed
from workbench.run.directory import RunDirectory
from workbench.training.plan.loading import (
    adapter_sum,
    bars_for,
    base_differs,
    base_files,
    check_4bit,
    quiet_imports,
)

# Size of each format against the weights in 16 bits. A GGUF is made of an f16 one, which lies
# beside it meanwhile.
SIZES = {
    "merged_16bit": 1.0,
    "merged_4bit": 0.4,
    "gguf_f16": 1.0,
    "gguf_q8_0": 0.53,
    "gguf_q4_k_m": 0.31,
}


def export(
    run: RunDirectory,
    formats: Sequence[str] = ("adapter", "merged_16bit"),
    *,
    into: str | MergeRisk = "auto",
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Exported:
    """Write a run's policy into its `export/` folder, in each of `formats`, atomically.

    >>> exported = wb.export(wb.open_run())
    >>> exported["merged_16bit"].path.name
    'merged_16bit'

    An existing artefact, made from the same adapter into the same base and unchanged since, is
    kept.

    Args:
        formats: of adapter, merged_16bit, merged_4bit, gguf_f16, gguf_q8_0, gguf_q4_k_m; gguf: the
            last three. All but the adapter are made from merged_16bit, which is also made.
        into: what the adapter is merged into. "base": the 16-bit base; "dequantised": the 4-bit
            weights that it was trained beside, in 16 bits; "auto": as `merge_risk` advises, which
            is measured then; or its result.
        overwrite: replace an existing export.
        progress: called with the number of artefacts made, and the total.

    Raises:
        RunError: the run is training, or has no adapter.
        ExportError: an unknown format, another export in its place or at work, no room on the disk,
            or a missing tool.
    """
    need_train()
    ordered = in_order(formats, "auto" if isinstance(into, MergeRisk) else into)
    notes, verdict = [], ""
    weights = adapter_sum(run.check_ended().adapter)
    sealed.check_told(run)
    if unsummed := sealed.unsummed(run):
        notes.append(unsummed)
    if into == "auto":
        into = "base" if ordered == ["adapter"] else merge_risk(run)
    if isinstance(into, MergeRisk):
        into, verdict = into.into, into.verdict
        notes.append(f"merged into {INTO[into]}; merge risk {verdict}")
    if differs := merging.merge_base_differs(run):
        raise ExportError(
            f"{shown(merging.source_of(run))}: not as {run.name} loaded it: {differs}",
            rule="an adapter belongs to one base",
            remedy=merging.PUT_BACK,
        )
    base, chosen, making = merging.base_of(run), {}, []
    for format in ordered:
        artefact = Artefact(run.export / format, format, base, into, run)
        if format == "adapter":
            artefact = replace(artefact, into="base")
        chosen[format] = artefact
        other = _other(artefact, weights)
        if not other:
            notes.append(f"{format}: kept, as nothing has changed since it was made")
            continue
        making.append(artefact)
        if artefact.path.exists() and not overwrite:
            raise ExportError(
                f"{shown(artefact.path)}: another export: {other}",
                rule="an export never overwrites another unasked",
                remedy="overwrite=True replaces it; or move it",
            )
    if "merged_16bit" in ordered and "merged_16bit" not in formats:
        made_of_it = [format for format in ordered if format not in FORMATS[:2]]
        notes.append(f"merged_16bit: needed for {', '.join(made_of_it)}")
    update = progress or progress_line("export")
    with run.alone("export", ExportError):
        made(run.export)
        for left in [*run.export.glob(".*.part"), *run.export.glob(".*.before")]:  # by a kill
            shutil.rmtree(left, ignore_errors=True)
        _check_room(run, making)
        if any(artefact.format.startswith("gguf") for artefact in making):
            gguf.check_tools()
        for done, artefact in enumerate(making, start=len(chosen) - len(making)):
            update(done, len(chosen))
            notes += _made(run, artefact, verdict)
        update(len(chosen), len(chosen))
    return Exported(run, chosen, tuple(notes))


def _made(run: RunDirectory, artefact: Artefact, verdict: str) -> list[str]:
    with _written(artefact.path), replace_folder(artefact.path) as staged:
        note = _MAKES[artefact.format](run, artefact, staged)
        serving.write(staged, artefact)
        passport.stamp(staged, artefact, verdict)
        usual = (staged / passport.PASSPORT).stat().st_mode
        for file in staged.rglob("*"):
            if file.is_file():  # safetensors lets only the owner read
                file.chmod(usual)
    return [f"{artefact.format}: {note}"] if note else []


@contextlib.contextmanager
def _written(place: Path) -> Generator[None, None, None]:
    try:
        with written(place):
            yield
    except Exception as error:
        # as safetensors says it
        if not isinstance(error, OSError) and "(os error " not in str(error):
            raise
        raise ExportError(
            error.value if isinstance(error, DiskError) else f"{shown(place)}: {error}",
            rule="an artefact is written atomically",
            remedy="free some space, or reconnect the drive, and export again",
        ) from error


def in_order(formats: Sequence[str], into: str = "auto") -> list[str]:
    """The formats to make, each after the one that it is made from. ExportError for an unknown
    word, or no format.
    """
    wanted = {formats} if isinstance(formats, str) else {*formats}
    _check_known("format", wanted or {""}, (*FORMATS, "gguf"))
    _check_known("into", {into}, ("auto", *INTO))
    if "gguf" in wanted:
        wanted |= {*FORMATS[3:]}
    if wanted != {"adapter"}:
        wanted.add("merged_16bit")
    return [format for format in FORMATS if format in wanted]


def _check_known(what: str, words: set[str], known: tuple[str, ...]) -> None:
    for word in words.difference(known):
        raise ExportError(
            f"{what} = {word!r}",
            rule=f"{what} is one of {', '.join(known)}",
            remedy=nearest(word, known, "choose one of them"),
        )


def _other(artefact: Artefact, weights: str) -> str:
    # In what the export that is there differs from the one asked for, of the adapter with the sum
    # `weights`; empty: in nothing.
    try:
        record = passport.read_passport(artefact.path)
        changed = passport.changed_files(artefact.path)
    except ExportError as error:
        return f"its {error.value.removeprefix(f'{shown(artefact.path)}/')}"
    if (base := public_name(artefact.base)) != record["base"]:
        return f"its base is {record['base']}, not {base}"
    if record["into"] != artefact.into:
        return f"merged into {INTO[record['into']]}, not into {INTO[artefact.into]}"
    if record["adapter"]["sha256"] != weights:
        return "made from another adapter, from before the run resumed"
    other_base = base_differs(record["base_files"], base_files(artefact.base))
    return other_base or "; ".join(f"{name} {what}" for name, what in changed.items())


def _check_room(run: RunDirectory, making: Sequence[Artefact]) -> None:
    formats = [artefact.format for artefact in making]
    sizes = sum(SIZES.get(format, 0.0) for format in formats)
    if {"gguf_q8_0", "gguf_q4_k_m"}.intersection(formats):
        sizes += SIZES["gguf_f16"]
    needed = 2 * run.manifest()["policy"]["parameters"] * sizes
    if "adapter" in formats:
        needed += (run.adapter / "adapter_model.safetensors").stat().st_size
    free = shutil.disk_usage(run.path).free
    if needed > free:
        raise ExportError(
            f"{', '.join(formats)}: about {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free",
            rule="an export starts only if there is room for all of it",
            remedy=f"free some space where {shown(run.export)} is, or choose fewer formats",
        )


def _adapter(run: RunDirectory, artefact: Artefact, folder: Path) -> None:
    with quiet_imports():
        from transformers import GenerationConfig

    merging.copy_adapter(run.adapter, folder)
    kwargs = run.recipe().chat_template_kwargs
    tokenizer = merging.save_tokenizer(run.adapter, folder, kwargs=kwargs)
    ends = merging.one_or_list(merging.ended_with(run, tokenizer))
    GenerationConfig(eos_token_id=ends, pad_token_id=tokenizer.pad_token_id).save_pretrained(folder)


def _merged_16bit(run: RunDirectory, artefact: Artefact, folder: Path) -> None:
    merging.write_merged(
        artefact.base,
        run.adapter,
        folder,
        held=merging.four_bit(run) if artefact.into == "dequantised" else None,
        chat_template_kwargs=run.recipe().chat_template_kwargs,
        eos_ids=run.manifest().get("eos_ids", ()),
    )


def _merged_4bit(run: RunDirectory, artefact: Artefact, folder: Path) -> None:
    # Unsloth's own merge of this kind refuses a CPU.
    with quiet_imports():
        from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig

    merged = str(artefact.path.with_name("merged_16bit"))
    with bars_for(merged):
        dtype = AutoConfig.from_pretrained(merged, trust_remote_code=False).dtype
        nf4 = BitsAndBytesConfig(**merging.NF4, bnb_4bit_compute_dtype=dtype)
        model = AutoModelForCausalLM.from_pretrained(
            merged, quantization_config=nf4, dtype=dtype, trust_remote_code=False
        )
        check_4bit(model, shown(merged), asked=True)
        model.save_pretrained(folder)
    merging.save_tokenizer(merged, folder)


def _gguf(run: RunDirectory, artefact: Artefact, folder: Path) -> str:
    merged, kind = artefact.path.with_name("merged_16bit"), artefact.format.removeprefix("gguf_")
    out, chat = folder / artefact.gguf.name, serving.system_prompt(run) is not None
    if kind == "f16":
        gguf.convert(merged, out, chat=chat, name=run.name)
        return ""
    f16 = replace(artefact, path=artefact.path.with_name("gguf_f16"), format="gguf_f16")
    if not _other(f16, adapter_sum(run.adapter)):
        return gguf.quantise(f16.gguf, out, kind)
    whole = folder / ".f16.gguf"
    gguf.convert(merged, whole, chat=chat, name=run.name)
    note = gguf.quantise(whole, out, kind)
    whole.unlink()
    return note


_MAKES = {
    "adapter": _adapter,
    "merged_16bit": _merged_16bit,
    "merged_4bit": _merged_4bit,
} | dict.fromkeys(FORMATS[3:], _gguf)
