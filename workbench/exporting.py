"""05: a run's policy as files that others can load, with the proof that they hold the trained adapter.

The adapter was trained beside 4-bit weights, but is merged into the 16-bit ones: 4-bit weights would round the sum to 4 bits.
Plain transformers and PEFT do it. Exports that equal the base model are a known failure in this field, so the proof measures
both distances: merged to adapter, which must be rounding, and merged to base, which must not be.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.data.template import prompt_text
from workbench.errors import ExportError
from workbench.run.directory import RunDirectory
from workbench.training.loading import bars_for, find_model, quiet_imports, reading, with_adapter
from workbench.workspace import resolve, shown

# A 16-bit weight is rounded at 1 part in 256 (bfloat16), so logits of size 10 move by a few hundredths over the layers.
LARGEST_ROUNDING = 0.05  # share of the logits' own spread that rounding may move them by
_OTHER_BASE = "check that base and adapter belong together; `base` must be the 16-bit model of the run's policy"
_TOO_LARGE = (
    "it is the trained policy, and its adapter's weights are so large that 16 bits round them this far, as after a learning "
    "rate that was too high; train with a lower one, or serve base + adapter (export/adapter), which rounds nothing"
)


@dataclass(frozen=True, repr=False)
class Exported:
    """An adapter and the 16-bit model that it was merged into; its text lists the files."""

    base: str  # folder or hub name of the 16-bit model
    adapter: Path
    merged: Path
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    run: RunDirectory | None = None

    def __str__(self) -> str:
        lines = []
        for folder in (self.adapter, self.merged):
            lines.append(shown(folder))
            lines += [f"  {file.name}  {file.stat().st_size / 1024:.0f} KiB" for file in sorted(folder.iterdir())]
        return "\n".join(lines)

    __repr__ = __str__


def export(run: RunDirectory) -> Exported:
    """Copy a run's adapter into its `export/` folder, and merge it into the 16-bit base model there.

    >>> exported = wb.export(wb.open_run())
    >>> exported.merged.name
    'merged_16bit'

    Raises:
        RunError: if the run trains, or has no adapter.
        ExportError: if it was exported before, or its base is a folder of 4-bit weights.
    """
    base = sixteen_bit_base(run.check_ended().manifest()["policy"]["source"])
    adapter = copy_adapter(run.adapter, run.export / "adapter")
    merged = merge_16bit(base, adapter, run.export / "merged_16bit")
    return Exported(base, adapter, merged, run.recipe().chat_template_kwargs, run)


def copy_adapter(adapter: str | Path, out: str | Path) -> Path:
    """Copy a saved adapter, weights and tokenizer, into an export folder; pickles stay behind; ExportError without one."""
    adapter, out = resolve(adapter), resolve(out)
    if not (adapter / "adapter_config.json").is_file():
        value, remedy = f"{shown(adapter)}: no adapter_config.json", "give a run's checkpoints/final; an aborted run has none"
        raise ExportError(value, rule="an adapter is a folder that PEFT saved", remedy=remedy)
    out.mkdir(parents=True, exist_ok=True)
    for file in adapter.iterdir():
        if file.is_file() and file.suffix not in (".bin", ".pt", ".pth"):
            shutil.copyfile(file, out / file.name)
    return out


def sixteen_bit_base(source: str | Path) -> str:
    """The 16-bit model behind a policy's source: its name without `-bnb-4bit`; ExportError for a 4-bit folder."""
    folder = Path(source)
    if not folder.is_dir():
        return re.sub(r"-(unsloth-)?bnb-4bit$", "", str(source), flags=re.IGNORECASE)
    if json.loads((folder / "config.json").read_text(encoding="utf-8")).get("quantization_config"):
        value, remedy = f"{shown(folder)}: the weights are quantised", "give the 16-bit model's folder or hub name as `base`"
        raise ExportError(value, rule="an adapter is merged into 16-bit weights", remedy=remedy)
    return str(source)


def load_base(base: str | Path, dtype: str = "auto") -> tuple[Any, Any]:
    """(model, tokenizer) of the 16-bit base, through plain transformers."""
    with quiet_imports():
        from transformers import AutoModelForCausalLM, AutoTokenizer

    source = find_model(base)
    with reading(f"base {str(base)!r}"), bars_for(source):
        model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, trust_remote_code=False)
        return model.eval(), AutoTokenizer.from_pretrained(source, trust_remote_code=False)


def merge_16bit(base: str | Path, adapter: str | Path, out: str | Path) -> Path:
    """Merge the adapter that PEFT saved into its 16-bit base (folder or hub name); the whole model with its tokenizer, in `out`.

    The sum is made in 32 bits and rounded once, to the base's own 16-bit type. `out` is made whole, or not at all: ExportError
    if it already holds something.
    """
    with quiet_imports():
        import torch

    out = resolve(out)
    if out.exists() and any(out.iterdir()):
        raise ExportError(f"{shown(out)}: not empty", rule="an export never writes over another", remedy="delete it, or move it")
    stored, tokenizer = load_base(base)
    dtype = stored.dtype if stored.dtype in (torch.float16, torch.bfloat16) else torch.bfloat16
    merged = with_adapter(stored.float(), adapter).merge_and_unload()
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    with bars_for(str(base)):
        merged.to(dtype).save_pretrained(beside)
    tokenizer.save_pretrained(beside)
    # transformers saves its own form of the tokenizer only; converters to other formats ask for the original.
    original = Path(find_model(base)) / "tokenizer.model"
    if original.is_file():
        shutil.copyfile(original, beside / original.name)
    if out.exists():
        out.rmdir()
    beside.chmod(0o755)
    os.replace(beside, out)
    return out


@dataclass(frozen=True)
class Proof:
    """Merged model against base + adapter, on the same prompts."""

    prompts: int
    largest_logit_difference: float  # over every position of every prompt and its completion
    logit_spread: float  # std of the adapter's logits: what the difference is to be compared with
    same_greedy: int  # prompts whose greedy completions are equal, token for token
    largest_difference_to_base: float  # what the adapter changed
    answers: list[str]  # the merged model's greedy completions
    agrees: bool = field(init=False)  # merged and adapter are one model up to 16-bit rounding, and not the base

    def __post_init__(self) -> None:
        near = self.largest_logit_difference <= LARGEST_ROUNDING * self.logit_spread
        moved = self.largest_difference_to_base > 4 * self.largest_logit_difference
        object.__setattr__(self, "agrees", bool(near and moved and self.same_greedy == self.prompts))

    def require(self) -> None:
        """ExportError, with the numbers, if the merged model is not the trained policy."""
        if self.agrees:
            return
        # Another base would write other completions. Rounding is a share of a weight, so it moves large ones far.
        effect = self.largest_difference_to_base
        rounded = effect and self.largest_logit_difference / effect <= LARGEST_ROUNDING and self.same_greedy == self.prompts
        raise ExportError(
            f"merged and adapter differ by up to {self.largest_logit_difference:.3g} (the logits' spread is "
            f"{self.logit_spread:.3g}, the adapter's own effect {effect:.3g}); "
            f"{self.same_greedy} of {self.prompts} greedy completions are the same",
            rule=f"a merged model is base + adapter up to rounding, at most {LARGEST_ROUNDING:.0%} of the logits' spread",
            remedy=_TOO_LARGE if rounded else _OTHER_BASE,
        )


def prove(exported: Exported, prompts: Sequence[Any], max_completion_length: int = 96) -> Proof:
    """Load the merged model with plain transformers and hold it against base + adapter, in 32-bit arithmetic.

    >>> proof = wb.prove(exported, [row["prompt"] for row in wb.load_task("arithmetic").held_out[:2]])
    >>> proof.prompts, proof.largest_logit_difference < 0.01
    (2, True)

    Leaves `export/proof.json` in the folder of the run that was exported.

    Args:
        prompts: chat messages or text; a dozen will do.

    Raises:
        ExportError: if there are no prompts.
    """
    import torch

    if not len(prompts):
        raise ExportError("0 prompts", rule="a proof compares answers", remedy="give a few held-out prompts")
    base_model, tokenizer = load_base(exported.base, dtype="float32")
    merged_model, merged_tokenizer = load_base(exported.merged, dtype="float32")
    tokenizer.chat_template_kwargs = merged_tokenizer.chat_template_kwargs = dict(exported.chat_template_kwargs)
    adapted = with_adapter(base_model, exported.adapter).eval()
    largest, to_base, same, spreads, answers = 0.0, 0.0, 0, [], []
    with torch.inference_mode():
        for prompt in prompts:
            expected, _ = _greedy(adapted, tokenizer, prompt, max_completion_length)
            got, answer = _greedy(merged_model, merged_tokenizer, prompt, max_completion_length)
            same += bool(torch.equal(expected, got))
            answers.append(answer)
            # Both read the adapter's own completion, so that every position is compared, not only the prompt's.
            logits = adapted(expected).logits
            largest = max(largest, float((merged_model(expected).logits - logits).abs().max()))
            spreads.append(float(logits.std()))
            with adapted.disable_adapter():
                to_base = max(to_base, float((adapted(expected).logits - logits).abs().max()))
    proof = Proof(len(prompts), largest, sum(spreads) / len(spreads), same, to_base, answers)
    if exported.run is not None:
        exported.run.write_json("export/proof.json", proof)
    return proof


def ask(exported: Exported | str | Path, question: str, system_prompt: str | None = None, max_completion_length: int = 96) -> str:
    """Ask the merged model one question, greedily, through plain transformers.

    >>> wb.ask(exported, "What is 15 + 27?")
    '...'

    Args:
        exported: an export, whose run's `chat_template_kwargs` are used, or the folder of any saved model.
        system_prompt: the one that it was trained under; None: none.
    """
    import torch

    known = isinstance(exported, Exported)
    model, tokenizer = load_base(exported.merged if known else resolve(exported), dtype="float32")
    tokenizer.chat_template_kwargs = dict(exported.chat_template_kwargs) if known else {}
    prompt = [{"role": "system", "content": system_prompt}] if system_prompt else []
    with torch.inference_mode():
        return _greedy(model, tokenizer, [*prompt, {"role": "user", "content": question}], max_completion_length)[1]


def _greedy(model: Any, tokenizer: Any, prompt: Any, max_new_tokens: int) -> tuple[Any, str]:
    # (ids of the prompt and its greedy completion, [1, T]; the completion).
    text, chat = prompt_text(prompt, tokenizer), not isinstance(prompt, str)
    ids = tokenizer(text, return_tensors="pt", add_special_tokens=not chat)["input_ids"]
    how = {"do_sample": False, "max_new_tokens": max_new_tokens, "pad_token_id": tokenizer.pad_token_id}
    output = model.generate(input_ids=ids, attention_mask=ids.new_ones(ids.shape), **how)
    return output, tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True)
