"""The model card of an artefact: what it is, what it was trained on and by, and what that bought."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.exporting.about import clean
from workbench.exporting.artefacts import QUANTISED, Artefact
from workbench.exporting.checks import CAUSES, Proof
from workbench.exporting.serving import commands
from workbench.inspection.evaluation import gain_in_words
from workbench.printable import printable
from workbench.run.metrics import GROUP_STD, KL, REWARD
from workbench.training.loading import find_model
from workbench.workspace import replace_file

CARD = "README.md"
_SETTINGS = (
    "loss_type", "scale_rewards", "num_generations", "generation_batch_size", "beta", "learning_rate", "lr_scheduler_type",
    "max_steps", "temperature", "max_completion_length", "num_iterations", "epsilon", "importance_sampling_level",
    "multi_objective_aggregation",
)  # fmt: skip
_MERGED = "{base} with the trained LoRA adapter merged into it, "
_IS = {"adapter": "a LoRA adapter for {base}, in PEFT's layout", "merged_16bit": _MERGED + "in 16 bits"}
_IS |= {"merged_4bit": _MERGED + "then quantised to 4 bits (NF4)"}
_DEQUANTISED = " It was merged into the 4-bit weights that it was trained beside, written in 16 bits, not into the 16-bit base."
_VERIFY = """## Verify it

`workbench verify .` in this folder compares every file with `passport.json`, which also has the whole recipe, some completions
and the sums of what it was made from."""


def write_card(
    folder: Path, artefact: Artefact, known: dict[str, Any], proof: Proof | None = None, into: Path | None = None
) -> None:
    """Write `README.md` of what is known, as the passport has it, into the folder where the artefact's files lie, or another.

    Whatever somebody wrote (names, prompts, settings) stands in it as text: no markup, and no key, path or name of this machine.
    """
    from huggingface_hub import ModelCard

    body = "\n\n".join(filter(None, [*_what(artefact, known), *_use(folder, artefact, known), *_training(known), *_proof(proof)]))
    card = ModelCard(f"---\n{_metadata(artefact, known).to_yaml()}\n---\n\n{body}\n\n{_VERIFY}\n")
    with replace_file((into or folder) / CARD) as beside:
        beside.write_text(str(card), encoding="utf-8")


def _metadata(artefact: Artefact, known: dict[str, Any]) -> Any:
    from huggingface_hub import EvalResult, ModelCardData

    kind, task, results = artefact.format.partition("_")[0], known.get("task") or {}, []
    named = "openai/gsm8k" if task.get("ships") and task.get("name") == "gsm8k" else (task.get("card") or {}).get("source")
    source = named if re.fullmatch(r"[\w-]+/[\w-][\w.-]*", str(named)) and not Path(str(named)).suffix else None
    on: dict[str, Any] = {"task_type": "text-generation", "dataset_type": source or "custom", "dataset_split": "held_out"}
    on |= {"dataset_name": _one_line(source or _named(task))}
    if measured := known.get("evaluation"):
        label = _counted(measured)
        gain, size = measured["gain"], {"prompts": measured["prompts"], "samples": measured["samples"]}
        for name, metric, value, more in (
            (label, "accuracy", measured["after"]["correct"], {}),
            # A leaderboard would read an "accuracy" as this model's.
            (f"{label}, before training", "accuracy_before", measured["before"]["correct"], {}),
            ("gain, paired, with a 95 % interval", "accuracy_gain", gain["correct"], {"low": gain["low"], "high": gain["high"]}),
        ):
            results.append(EvalResult(**on, metric_type=metric, metric_name=name, metric_value=value, metric_args=size | more))
    trained_by = ["unsloth"] if known.get("backend_name") == "unsloth" else []
    relation = "adapter" if kind == "adapter" else "quantized" if artefact.format in QUANTISED else "finetune"
    return ModelCardData(
        base_model=known["base"], base_model_relation=relation, license=_license(artefact.base),
        library_name={"adapter": "peft", "merged": "transformers", "gguf": "gguf"}[kind], pipeline_tag="text-generation",
        tags=["grpo", "trl", *trained_by, "lora", "workbench"], datasets=[source] if source else None,
        model_name=_one_line(known.get("run") or artefact.format), eval_results=results or None,
    )  # fmt: skip


def _counted(measured: dict[str, Any]) -> str:
    return "correct" if measured["after"].get("format", 0) is None else "correct, strict format"


def _named(task: dict[str, Any]) -> Any:
    # One that is called as its file is, like those of notebook 02, goes by its rows.
    name, file = task.get("name"), str(task.get("file"))
    return (task.get("card") or {}).get("source") or file if name == Path(file).stem else name


def _license(base: str) -> str | None:
    # As the base's own card says, if that is on this machine.
    from huggingface_hub import ModelCard, try_to_load_from_cache

    with contextlib.suppress(Exception):  # a card that cannot be read says nothing
        folder = Path(find_model(base, ask_hub=False))
        return ModelCard.load(folder / CARD if folder.is_dir() else str(try_to_load_from_cache(base, CARD))).data.license
    return None


# -- the sections of the text --------------------------------------------------------------------------------------------
def _what(artefact: Artefact, known: dict[str, Any]) -> Iterable[str]:
    format, measured, warm = artefact.format, known.get("evaluation"), known.get("warm_start")
    saved = (known.get("adapter") or {}).get("from", "").rpartition("-")[2]  # best-30, checkpoint-45, final
    steps = saved if saved.isdecimal() else (known.get("result") or {}).get("steps")
    after = f", after a warm start on {warm['samples']} right completions (SFT)" if warm else ""
    gguf = f"{_MERGED}as one GGUF file ({format.removeprefix('gguf_')})"
    gained = gain_in_words(measured) if measured else "What training gained is not measured"
    yield f"# {_text(known.get('run') or format)}, {format}"
    yield (
        f"This is {_IS.get(format, gguf).format(base=_code(known['base']))}."
        f"{_DEQUANTISED * (artefact.into == 'dequantised' and format != 'adapter')} It was trained with GRPO for {steps or '?'} "
        f"steps on the task {_code(_named(known.get('task') or {}))}{after}. {gained[0].upper()}{gained[1:]}."
    )
    if measured:
        shares = [f"{100 * measured[when]['correct']:.1f} %" for when in ("before", "after")]
        how = f"{measured['samples']} completions each, sampled at temperature {known['settings'].get('temperature') or 1.0:g}"
        size = f"{measured['prompts']} held-out prompts, the same before and after, {how}. It is the policy before the export"
        size += "; what these files do is under Proof." if artefact.format in QUANTISED else "."
        yield f"{_table(['', 'before', 'after'], [[_counted(measured), *shares]])}\n\n{size}"


def _use(folder: Path, artefact: Artefact, known: dict[str, Any]) -> Iterable[str]:
    yield "## Load it\n\nIn this folder:"
    of_hub = "/" in known["base"]
    lines = commands(replace(artefact, path=folder, base=known["base"] if of_hub else "BASE"))
    if artefact.format == "adapter" and not of_hub:
        on = "transformers.AutoModelForCausalLM.from_pretrained('BASE')"
        lines["transformers"] = f"peft.PeftModel.from_pretrained({on}, '.')"
    yield from (f"{_text(name)}:\n\n{_fenced(clean(line))}" for name, line in lines.items())
    if artefact.format == "adapter":
        there = "the policy that comes with the workbench: in Python, the folder `workbench.tiny.MODEL_DIR`"
        there = there if known["base"] == "tiny" else "in a folder of its own, which did not come with it"
        yield "" if of_hub else f"`BASE` is where {_code(known['base'])} lies, {there}."
        beside = "It was trained beside the base in 4 bits (NF4), and these lines put it on the 16-bit base, another sum."
        beside += f" Merge risk: {_text(known['merge_risk'])}." if known.get("merge_risk") else ""
        yield beside if known.get("precision") == "nf4" else ""
    prompt = next((row["prompt"] for row in known.get("rollouts") or ()), [])
    if prompt:
        shown = prompt if isinstance(prompt, str) else "\n\n".join(f"[{each['role']}]\n{each['content']}" for each in prompt)
        yield f"## Prompt format\n\nIt was trained on prompts like this one, system prompt included.\n\n{_fenced(shown)}"
        template = known["recipe"]["grpo"].get("chat_template_kwargs")
        yield f"Arguments of the chat template: {_code(json.dumps(template))}." if template else ""


def _training(known: dict[str, Any]) -> Iterable[str]:
    if "recipe" not in known:
        return
    lora, policy, force, task = known["recipe"]["lora"], known["recipe"]["policy"], known["settings"], known["task"]
    settings = [[name, force[name]] for name in _SETTINGS if name in force] + [["seed", known["recipe"]["seed"]]]
    settings += [["LoRA", f"r {lora['r']}, alpha {lora['lora_alpha']}, on {', '.join(lora['target_modules'])}"]]
    settings += [["base while training", f"{known['precision']}, {policy['max_seq_length']} tokens"]]
    yield "## Training\n\n" + _table(["setting", "value"], settings)
    functions, weights = (known["rewards"][name] or {} for name in ("functions", "weights"))
    yield _table(["reward function", "weight", "hash"], [[name, weights.get(name), own] for name, own in functions.items()])
    rows = ([row[name] for name in ("step", REWARD, GROUP_STD, KL)] for row in known["curve"])
    points = [[step, *("not measured" if own is None else f"{own:.3g}" for own in values)] for step, *values in rows]
    yield _table(["step", "reward", "std within groups", "KL"], points)
    sizes = (task.get("card") or {}).get("rows") or {"train": known["prompts"].get("used")}
    data = [[f"{split} rows", sizes.get(split), task.get(own)] for split, own in (("train", "rows"), ("held_out", "held_out"))]
    yield _table(["data", "rows", "fingerprint"], data)
    yield _table(["made with", ""], [[name, value] for name, value in known["environment"].items() if value])


def _proof(proof: Proof | None) -> Iterable[str]:
    if proof is not None:
        yield f"## Proof\n\nLoaded back and held against the policy that was trained: {'passed' if proof.passed else 'FAILED'}."
        found = [f"{CAUSES[each.cause]}: {each.found}" if each.cause in CAUSES else each.found for each in proof.checks]
        checks = ([c.level, c.name, c.mark, what] for c, what in zip(proof.checks, found, strict=True))
        yield _table(["level", "check", "", "found"], checks)
        yield "\n".join(f"- unproven: {_text(line)}" for line in proof.unproven)


# -- Markdown: what somebody else wrote is text in it --------------------------------------------------------------------
def _one_line(value: Any) -> str:
    return printable(" ".join(clean("-" if value is None else str(value)).split()))


def _text(value: Any) -> str:
    text = _one_line(value).replace("&", "&amp;").replace("<", "&lt;").replace("\\", "&#92;")  # \\( is math on the hub
    return re.sub(r"([`*\[\]|$~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))", r"\\\1", text)


def _code(value: Any) -> str:
    text = _one_line(value)
    ticks = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    return f"{ticks}{text}{ticks}" if len(ticks) == 1 else f"{ticks} {text} {ticks}"


def _fenced(text: str) -> str:
    ticks = "`" * max(3, max(map(len, re.findall("`+", text)), default=0) + 1)
    return f"{ticks}\n{printable(text)}\n{ticks}"


def _table(header: list[str], rows: Iterable[Iterable[Any]]) -> str:
    lines = [header, ["---"] * len(header), *([_text(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) if len(lines) > 2 else ""
