"""The model card of an artefact: what it is, what it was trained on and by, and what that
gained.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from pathlib import Path

from workbench.base.kinds import Fields
from workbench.base.printable import printable
from workbench.base.workspace import replace_file
from workbench.exporting.artefacts import QUANTISED, Artefact
from workbench.exporting.checks import CAUSES, Proof
from workbench.exporting.public import clean
from workbench.exporting.serving import commands
from workbench.inspection.measured import gain_in_words
from workbench.training.plan.loading import find_model

CARD = "README.md"
_TEMPLATE = Path(__file__).with_name("card.md.jinja")
_SETTINGS = (
    "loss_type", "scale_rewards", "num_generations", "generation_batch_size", "beta",
    "learning_rate", "lr_scheduler_type",
    "max_steps", "temperature", "max_completion_length", "num_iterations", "epsilon",
    "importance_sampling_level",
    "multi_objective_aggregation",
)  # fmt: skip


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
    from jinja2 import Environment

    writer = Environment(trim_blocks=True, keep_trailing_newline=True)
    writer.filters |= {"text": text, "code": code, "fenced": fenced}
    template = writer.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    content = _metadata(artefact, known) | _content(folder, artefact, known, proof)
    with replace_file((into or folder) / CARD) as beside:
        beside.write_text(template.render(content), encoding="utf-8")


def _metadata(artefact: Artefact, known: Fields) -> Fields:
    kind, task = artefact.format.partition("_")[0], known.get("task") or {}
    dataset = "openai/gsm8k" if task.get("ships") and task.get("name") == "gsm8k" else None
    source = str((task.get("card") or {}).get("source"))
    if re.fullmatch(r"[\w-]+/[\w-][\w.-]*", source) and not Path(source).suffix:
        dataset = dataset or source
    return {
        "license": _license(artefact.base),
        "library": {"adapter": "peft", "merged": "transformers", "gguf": "gguf"}[kind],
        "model_name": _one_line(known.get("run") or artefact.format),
        "dataset": dataset,
        "dataset_name": _one_line(dataset or _named(task)),
    }


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
        card = Path(find_model(base, ask_hub=False), CARD)
        cached = card if card.parent.is_dir() else try_to_load_from_cache(base, CARD)
        if cached:
            return ModelCard.load(str(cached)).data.license
    return None


# -- what the text is made of
# --------------------------------------------------------------------------------------------
def _content(folder: Path, artefact: Artefact, known: Fields, proof: Proof | None) -> Fields:
    measured, base = known.get("evaluation"), known["base"]
    gained = gain_in_words(measured) if measured else "What training gained is not measured"
    # best-30, checkpoint-45, final
    saved = (known.get("adapter") or {}).get("from", "").rpartition("-")[2]
    of_hub, is_adapter = "/" in base, artefact.format == "adapter"
    lines = commands(replace(artefact, path=folder, base=base if of_hub else "BASE"))
    if is_adapter and not of_hub:
        on = "transformers.AutoModelForCausalLM.from_pretrained('BASE')"
        lines["transformers"] = f"peft.PeftModel.from_pretrained({on}, '.')"
    prompt = known.get("prompt") or ""
    if not isinstance(prompt, str):
        prompt = "\n\n".join(f"[{each['role']}]\n{each['content']}" for each in prompt)
    return {
        "artefact": artefact,
        "known": known,
        "proof": proof,
        "causes": CAUSES,
        "settings": _SETTINGS,
        "is_adapter": is_adapter,
        "quantised": artefact.format in QUANTISED,
        "of_hub": of_hub,
        "steps": saved if saved.isdecimal() else (known.get("result") or {}).get("steps"),
        "task": _named(known.get("task") or {}),
        "gained": gained,
        "measured": measured,
        "counted": _counted(measured) if measured else "",
        "commands": clean(lines),
        "prompt": prompt,
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


def _longest_ticks(value: str) -> int:
    return max(map(len, re.findall("`+", value)), default=0)
