"""Making a run's artefacts: each is checked for room, staged beside its place, and renamed into
place when it is whole.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path

from workbench.errors import DiskError, ExportError, nearest
from workbench.exporting import gguf, merging, passport, serving
from workbench.exporting.artefacts import FORMATS, INTO, Artefact, Exported
from workbench.exporting.public import public_name
from workbench.exporting.risk import MergeRisk, merge_risk
from workbench.progress import progress_line
from workbench.run.directory import RunDirectory
from workbench.run.rollouts import read_batches
from workbench.training.loading import (
    adapter_sum,
    bars_for,
    base_differs,
    base_files,
    check_4bit,
    quiet_imports,
)
from workbench.workspace import made, replace_folder, shown, written

# Size of each format against the weights in 16 bits. A GGUF is made of an f16 one, which lies
# beside it meanwhile.
SIZES = {
    "merged_16bit": 1.0,
    "merged_4bit": 0.4,
    "gguf_f16": 1.0,
    "gguf_q8_0": 0.53,
    "gguf_q4_k_m": 0.31,
}
_BITS = {"16": "base", "4": "dequantised"}  # that somebody may call them by


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
    ordered = in_order(formats, "auto" if isinstance(into, MergeRisk) else into)
    adapter, notes, verdict = run.check_ended().adapter, [], ""
    if into == "auto":
        into = "base" if ordered == ["adapter"] else merge_risk(run)
    if isinstance(into, MergeRisk):
        into, verdict = into.into, into.verdict
        notes.append(f"merged into {INTO[into]}; merge risk {verdict}")
    base, weights = merging.base_of(run), adapter_sum(run.adapter)
    if differs := merging.merge_base_differs(run):
        value, rule = (
            f"{shown(merging.source_of(run))}: not as {run.name} loaded it: {differs}",
            "an adapter belongs to one base",
        )
        raise ExportError(value, rule=rule, remedy=merging.PUT_BACK)
    chosen = {
        each: Artefact(run.export / each, each, base, "base" if each == "adapter" else into, run)
        for each in ordered
    }
    other = {each: _other(artefact, weights) for each, artefact in chosen.items()}
    kept, making = (
        [each for each in ordered if not other[each]],
        [chosen[each] for each in ordered if other[each]],
    )
    notes += [f"{each}: kept, as nothing has changed since it was made" for each in kept]
    if (there := next((each for each in making if each.path.exists()), None)) and not overwrite:
        value, remedy = (
            f"{shown(there.path)}: another export: {other[there.format]}",
            "overwrite=True replaces it; or move it",
        )
        raise ExportError(value, rule="an export never overwrites another unasked", remedy=remedy)
    if "merged_16bit" in ordered and "merged_16bit" not in formats:
        notes.append(
            "merged_16bit: needed for"
            f" {', '.join(each for each in ordered if each not in FORMATS[:2])}"
        )
    update = progress or progress_line("export")
    with run.alone("export", ExportError):
        made(run.export)
        for left in [*run.export.glob(".*.part"), *run.export.glob(".*.before")]:  # by a kill
            shutil.rmtree(left, ignore_errors=True)
        _check_room(run, adapter, making)
        if any(each.format.startswith("gguf") for each in making):
            gguf.check_tools()
        for done, artefact in enumerate(making, start=len(kept)):
            update(done, len(chosen))
            notes += _made(run, artefact, verdict)
        update(len(chosen), len(chosen))
    return Exported(run, chosen, tuple(notes))


def _made(run: RunDirectory, artefact: Artefact, verdict: str) -> list[str]:
    with _written(artefact.path), replace_folder(artefact.path) as staged:
        said = _MAKES[artefact.format](run, artefact, staged)
        serving.write(staged, artefact)
        passport.stamp(staged, artefact, verdict)
        usual = (staged / passport.PASSPORT).stat().st_mode
        for file in staged.rglob("*"):
            # safetensors lets only the owner read
            if file.is_file() and file.stat().st_mode != usual:
                file.chmod(usual)
    return [f"{artefact.format}: {said}"] if said else []


@contextlib.contextmanager
def _written(place: Path) -> Generator[None, None, None]:
    try:
        with written(place):
            yield
    except Exception as error:
        # as safetensors says it
        if not isinstance(error, OSError) and "(os error " not in str(error):
            raise
        value = error.value if isinstance(error, DiskError) else f"{shown(place)}: {error}"
        rule = "an artefact is written atomically"
        raise ExportError(
            value, rule=rule, remedy="free some space, or reconnect the drive, and export again"
        ) from error


def in_order(formats: Sequence[str], into: str = "auto") -> list[str]:
    """The formats to make, each after the one that it is made from. ExportError for an unknown
    word, or no format.
    """
    asked = [formats] if isinstance(formats, str) else list(formats)
    for what, said, known in (
        ("format", asked or [""], (*FORMATS, "gguf")),
        ("into", [into], ("auto", *INTO)),
    ):
        if unknown := [each for each in said if each not in known]:
            word = next(
                (own for bits, own in _BITS.items() if what == "into" and bits in unknown[0]),
                unknown[0],
            )
            remedy, rule = (
                nearest(word, known, "choose one of them"),
                f"{what} is one of {', '.join(known)}",
            )
            raise ExportError(f"{what} = {unknown[0]!r}", rule=rule, remedy=remedy)
    wanted = {*asked, *(FORMATS[3:] if "gguf" in asked else ())}
    wanted |= {"merged_16bit"} if wanted - {"adapter"} else set()
    return [each for each in FORMATS if each in wanted]


def _other(artefact: Artefact, weights: str) -> str:
    # In what the export that is there differs from the one asked for, of the adapter with the sum
    # `weights`; empty: in nothing.
    try:
        found, changed = (
            passport.read_passport(artefact.path),
            passport.changed_files(artefact.path),
        )
    except ExportError as error:
        return f"its {error.value.removeprefix(f'{shown(artefact.path)}/')}"
    if (base := public_name(artefact.base)) != found["base"]:
        return f"its base is {found['base']}, not {base}"
    if found["into"] != artefact.into:
        return f"merged into {INTO[found['into']]}, not into {INTO[artefact.into]}"
    if found["adapter"]["sha256"] != weights:
        return "made from another adapter, from before the run resumed"
    other_base = base_differs(found["base_files"], base_files(artefact.base))
    return other_base or "; ".join(f"{name} {what}" for name, what in changed.items())


def _check_room(run: RunDirectory, adapter: Path, making: Sequence[Artefact]) -> None:
    whole = 2 * run.manifest()["policy"]["parameters"]
    own = sum(file.stat().st_size for file in adapter.iterdir() if file.is_file())
    sizes = [whole * SIZES[each.format] if each.format in SIZES else own for each in making]
    beside = whole if any(each.format in ("gguf_q8_0", "gguf_q4_k_m") for each in making) else 0
    needed, free = sum(sizes) + beside, shutil.disk_usage(run.path).free
    if needed > free:
        value = (
            f"{', '.join(each.format for each in making)}: about {needed / 1e9:.1f} GB, and"
            f" {free / 1e9:.1f} GB are free"
        )
        remedy = f"free some space where {shown(run.export)} is, or choose fewer formats"
        raise ExportError(
            value, rule="an export starts only if there is room for all of it", remedy=remedy
        )


def _adapter(run: RunDirectory, artefact: Artefact, folder: Path) -> None:
    with quiet_imports():
        from transformers import GenerationConfig

    merging.copy_adapter(run.adapter, folder)
    tokenizer = merging.save_tokenizer(
        run.adapter, folder, kwargs=run.recipe().chat_template_kwargs
    )
    ends = merging.one_or_list(merging.ended_with(run, tokenizer))
    GenerationConfig(eos_token_id=ends, pad_token_id=tokenizer.pad_token_id).save_pretrained(folder)


def _merged_16bit(run: RunDirectory, artefact: Artefact, folder: Path) -> None:
    held = merging.four_bit(run) if artefact.into == "dequantised" else None
    more = {
        "chat_template_kwargs": run.recipe().chat_template_kwargs,
        "eos_ids": run.manifest().get("eos_ids", ()),
    }
    merging.write_merged(artefact.base, run.adapter, folder, held=held, **more)


def _merged_4bit(run: RunDirectory, artefact: Artefact, folder: Path) -> None:
    # Unsloth's own merge of this kind refuses a CPU.
    with quiet_imports():
        from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig

    merged = artefact.path.with_name("merged_16bit")
    with bars_for(str(merged)):
        dtype = AutoConfig.from_pretrained(str(merged), trust_remote_code=False).dtype
        nf4 = BitsAndBytesConfig(**merging.NF4, bnb_4bit_compute_dtype=dtype)
        model = AutoModelForCausalLM.from_pretrained(
            str(merged), quantization_config=nf4, dtype=dtype, trust_remote_code=False
        )
        check_4bit(model, str(shown(merged)), asked=True)
        model.save_pretrained(folder)
    merging.save_tokenizer(merged, folder)


def _gguf(run: RunDirectory, artefact: Artefact, folder: Path) -> str:
    merged, kind = artefact.path.with_name("merged_16bit"), artefact.format.removeprefix("gguf_")
    out = folder / artefact.gguf.name
    batches = read_batches(run) if any(run.rollouts.glob("step-*.parquet")) else []
    chat = next((not isinstance(batch.prompts[0], str) for batch in batches), True)
    if kind == "f16":
        gguf.convert(merged, out, chat=chat, name=run.name)
        return ""
    whole = replace(artefact, path=artefact.path.with_name("gguf_f16"), format="gguf_f16")
    f16 = folder / ".f16.gguf" if _other(whole, adapter_sum(run.adapter)) else whole.gguf
    if f16.parent == folder:
        gguf.convert(merged, f16, chat=chat, name=run.name)
    said = gguf.quantise(f16, out, kind)
    (folder / f16.name).unlink(missing_ok=True)
    return said


_MAKES = {
    "adapter": _adapter,
    "merged_16bit": _merged_16bit,
    "merged_4bit": _merged_4bit,
} | dict.fromkeys(FORMATS[3:], _gguf)
