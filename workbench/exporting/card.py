"""The model card of an artefact: what it is, what it was trained on and by, and what that
gained.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.exporting.artefacts import QUANTISED, Artefact
from workbench.exporting.checks import CAUSES, Proof
from workbench.exporting.public import clean
from workbench.exporting.serving import commands
from workbench.inspection.measured import gain_in_words
from workbench.kinds import Fields
from workbench.printable import printable
from workbench.run.metrics import GROUP_STD, KL, REWARD
from workbench.training.loading import find_model
from workbench.workspace import replace_file

CARD = "README.md"
_TEMPLATE = Path(__file__).with_name("card.md.jinja")
_SETTINGS = (
    "loss_type", "scale_rewards", "num_generations", "generation_batch_size", "beta",
    "learning_rate", "lr_scheduler_type",
    "max_steps", "temperature", "max_completion_length", "num_iterations", "epsilon",
    "importance_sampling_level",
    "multi_objective_aggregation",
)  # fmt: skip
_MERGED = "{base} with the trained LoRA adapter merged into it, "
_IS = {
    "adapter": "a LoRA adapter for {base}, in PEFT's layout",
    "merged_16bit": _MERGED + "in 16 bits",
    "merged_4bit": _MERGED + "then quantised to 4 bits (NF4)",
}


def write_card(
    folder: Path,
    artefact: Artefact,
    known: Fields,
    proof: Proof | None = None,
    into: Path | None = None,
) -> None:
    """Write `README.md` from the passport's facts into the folder of the artefact's files, or
    another.

    The text is `card.md.jinja`. Anything that somebody wrote (names, prompts, settings) appears as
    text: no markup, and no key, path or name of this machine.
    """
    from huggingface_hub import ModelCard
    from jinja2 import Environment

    writer = Environment(trim_blocks=True, keep_trailing_newline=True)
    writer.filters |= {"text": text, "code": code, "fenced": fenced, "table": table}
    page = writer.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
        _content(folder, artefact, known, proof)
    )
    card = ModelCard(f"---\n{_metadata(artefact, known).to_yaml()}\n---\n\n{page}")
    with replace_file((into or folder) / CARD) as beside:
        beside.write_text(str(card), encoding="utf-8")


def _metadata(artefact: Artefact, known: Fields) -> Any:
    from huggingface_hub import EvalResult, ModelCardData

    kind, task, results = artefact.format.partition("_")[0], known.get("task") or {}, []
    named = (
        "openai/gsm8k"
        if task.get("ships") and task.get("name") == "gsm8k"
        else (task.get("card") or {}).get("source")
    )
    source = (
        named
        if re.fullmatch(r"[\w-]+/[\w-][\w.-]*", str(named)) and not Path(str(named)).suffix
        else None
    )
    on: Fields = {
        "task_type": "text-generation",
        "dataset_type": source or "custom",
        "dataset_split": "held_out",
    }
    on |= {"dataset_name": _one_line(source or _named(task))}
    if measured := known.get("evaluation"):
        label = _counted(measured)
        gain, size = (
            measured["gain"],
            {
                "prompts": measured["prompts"],
                "samples": measured["samples"],
            },
        )
        for name, metric, value, more in (
            (label, "accuracy", measured["after"]["correct"], {}),
            # A leaderboard would read an "accuracy" as this model's.
            (f"{label}, before training", "accuracy_before", measured["before"]["correct"], {}),
            (
                "gain, paired, with a 95 % interval",
                "accuracy_gain",
                gain["correct"],
                {"low": gain["low"], "high": gain["high"]},
            ),
        ):
            results.append(
                EvalResult(
                    **on,
                    metric_type=metric,
                    metric_name=name,
                    metric_value=value,
                    metric_args=size | more,
                )
            )
    trained_by = ["unsloth"] if known.get("backend_name") == "unsloth" else []
    relation = (
        "adapter"
        if kind == "adapter"
        else "quantized"
        if artefact.format in QUANTISED
        else "finetune"
    )
    return ModelCardData(
        base_model=known["base"], base_model_relation=relation, license=_license(artefact.base),
        library_name={"adapter": "peft", "merged": "transformers", "gguf": "gguf"}[kind],
            pipeline_tag="text-generation",
        tags=["grpo", "trl", *trained_by, "lora", "workbench"],
            datasets=[source] if source else None,
        model_name=_one_line(known.get("run") or artefact.format), eval_results=results or None,
    )  # fmt: skip


def _counted(measured: Fields) -> str:
    return "correct" if measured["after"].get("format", 0) is None else "correct, strict format"


def _named(task: Fields) -> object:
    # One that is called as its file is, like those of notebook 02, goes by its rows.
    name, file = task.get("name"), str(task.get("file"))
    return (task.get("card") or {}).get("source") or file if name == Path(file).stem else name


def _license(base: str) -> str | None:
    # As the base's own card says, if that is on this machine.
    from huggingface_hub import ModelCard, try_to_load_from_cache

    with contextlib.suppress(Exception):  # a card that cannot be read says nothing
        folder = Path(find_model(base, ask_hub=False))
        return ModelCard.load(
            folder / CARD if folder.is_dir() else str(try_to_load_from_cache(base, CARD))
        ).data.license
    return None


# -- what the text is made of
# --------------------------------------------------------------------------------------------
def _content(folder: Path, artefact: Artefact, known: Fields, proof: Proof | None) -> Fields:
    measured = known.get("evaluation")
    gained = gain_in_words(measured) if measured else "What training gained is not measured"
    # best-30, checkpoint-45, final
    saved = (known.get("adapter") or {}).get("from", "").rpartition("-")[2]
    of_hub = "/" in known["base"]
    is_adapter = artefact.format == "adapter"
    lines = commands(replace(artefact, path=folder, base=known["base"] if of_hub else "BASE"))
    if is_adapter and not of_hub:
        on = "transformers.AutoModelForCausalLM.from_pretrained('BASE')"
        lines["transformers"] = f"peft.PeftModel.from_pretrained({on}, '.')"
    prompt = next((row["prompt"] for row in known.get("rollouts") or ()), "")
    if not isinstance(prompt, str):
        prompt = "\n\n".join(f"[{each['role']}]\n{each['content']}" for each in prompt)
    gguf = f"{_MERGED}as one GGUF file ({artefact.format.removeprefix('gguf_')})"
    content = {
        "artefact": artefact,
        "known": known,
        "proof": proof,
        "what": _IS.get(artefact.format, gguf).format(base=code(known["base"])),
        "is_adapter": is_adapter,
        "quantised": artefact.format in QUANTISED,
        "of_hub": of_hub,
        "steps": saved if saved.isdecimal() else (known.get("result") or {}).get("steps"),
        "task": _named(known.get("task") or {}),
        "gained": f"{gained[0].upper()}{gained[1:]}",
        "measured": measured,
        "counted": _counted(measured) if measured else "",
        "share": lambda of: f"{100 * of['correct']:.1f} %",
        "commands": {name: clean(line) for name, line in lines.items()},
        "prompt": prompt,
    }
    if proof is not None:
        found = [
            f"{CAUSES[each.cause]}: {each.found}" if each.cause in CAUSES else each.found
            for each in proof.checks
        ]
        content["checks"] = [
            [c.level, c.name, c.mark, what] for c, what in zip(proof.checks, found, strict=True)
        ]
    return content | (_training(known) if "recipe" in known else {})


def _training(known: Fields) -> dict[str, list[list[Any]]]:
    lora, policy, effective, task = (
        known["recipe"]["lora"],
        known["recipe"]["policy"],
        known["settings"],
        known["task"],
    )
    settings = [[name, effective[name]] for name in _SETTINGS if name in effective]
    settings.append(["seed", known["recipe"]["seed"]])
    settings.append(
        [
            "LoRA",
            f"r {lora['r']}, alpha {lora['lora_alpha']}, on {', '.join(lora['target_modules'])}",
        ]
    )
    settings.append(
        ["base while training", f"{known['precision']}, {policy['max_seq_length']} tokens"]
    )
    weights = known["rewards"]["weights"] or {}
    rows = ([row[name] for name in ("step", REWARD, GROUP_STD, KL)] for row in known["curve"])
    sizes = (task.get("card") or {}).get("rows") or {"train": known["prompts"].get("used")}
    return {
        "settings": settings,
        "functions": [
            [name, weights.get(name), own]
            for name, own in (known["rewards"]["functions"] or {}).items()
        ],
        "curve": [
            [step, *("not measured" if own is None else f"{own:.3g}" for own in values)]
            for step, *values in rows
        ],
        "data": [
            [f"{split} rows", sizes.get(split), task.get(own)]
            for split, own in (("train", "rows"), ("held_out", "held_out"))
        ],
        "environment": [[name, value] for name, value in known["environment"].items() if value],
    }


# -- Markdown: what somebody else wrote is text in it
# --------------------------------------------------------------------
def _one_line(value: object) -> str:
    return printable(" ".join(clean("-" if value is None else str(value)).split()))


def text(value: object) -> str:
    """A value in one line, without active Markdown."""
    # \\( is math on the hub
    line = _one_line(value).replace("&", "&amp;").replace("<", "&lt;").replace("\\", "&#92;")
    return re.sub(r"([`*\[\]|$~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))", r"\\\1", line)


def code(value: object) -> str:
    """A value in one line, between more backticks than it contains."""
    line = _one_line(value)
    ticks = "`" * (_longest_ticks(line) + 1)
    return f"{ticks}{line}{ticks}" if len(ticks) == 1 else f"{ticks} {line} {ticks}"


def fenced(value: str, language: str = "") -> str:
    """A text as it is, between fences longer than any in it, so that a model's text stays
    inside.
    """
    ticks = "`" * max(3, _longest_ticks(value) + 1)
    return f"{ticks}{language}\n{printable(value)}\n{ticks}"


def table(rows: Iterable[Iterable[Any]], *header: str) -> str:
    """Rows under a header; nothing where there are none."""
    lines = [header, ["---"] * len(header), *([text(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) if len(lines) > 2 else ""


def _longest_ticks(value: str) -> int:
    return max(map(len, re.findall("`+", value)), default=0)
