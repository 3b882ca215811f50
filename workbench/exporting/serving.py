"""How an artefact is served elsewhere: an Ollama Modelfile, and the commands for vLLM, llama.cpp
and MLX.
"""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path

from workbench.base.errors import WorkbenchError
from workbench.base.kinds import Prompt
from workbench.data.template import ids_that_end
from workbench.exporting.artefacts import Artefact
from workbench.exporting.public import clean
from workbench.run.directory import RunDirectory
from workbench.run.rollouts import batch_and_place, stage_in
from workbench.training.plan.loading import load_tokenizer

_TEMPLATE = """\
# Ollama takes the chat template from the GGUF file if it is one that it knows, and otherwise sends your text as it is: compare
# `ollama show --template`. Where it differs, let the client render the prompt with the file's own template, and ask with
# "raw": true. Ollama was not run here."""  # noqa: E501


def commands(artefact: Artefact) -> dict[str, str]:
    """Name of the software -> the line that serves or converts this artefact, in its folder."""
    run = artefact.run
    name = run.name.lower() if run else "policy"
    if artefact.format.startswith("gguf"):
        file = shlex.quote(f"./{artefact.gguf.name}")
        return {
            "llama.cpp": f"llama-server --model {file} --jinja",
            "Ollama": f"ollama create {name} -f ./Modelfile && ollama run {name}",
        }
    if artefact.format == "adapter":
        rank = run.recipe().lora.r if run else 16
        # vLLM knows no other
        most = next((each for each in (8, 16, 32, 64, 128, 256, 320) if rank <= each), 512)
        return {
            "vLLM": f"vllm serve {shlex.quote(artefact.base)} --enable-lora --max-lora-rank {most}"
            f" --lora-modules {name}=.",
            "transformers": "peft.AutoPeftModelForCausalLM.from_pretrained('.')",
        }
    lines = {
        "vLLM": "vllm serve .",
        "transformers": "transformers.pipeline(\"text-generation\", model='.')",
    }
    if artefact.format == "merged_16bit":
        lines["MLX"] = "mlx_lm.convert --hf-path . -q"
    return lines


def write(folder: Path, artefact: Artefact) -> None:
    """Write the Modelfile of a `gguf_…` artefact into the folder of its files; other formats need
    none.

    The tokens that end a completion are read from the `merged_16bit` beside the artefact's final
    place.
    """
    run = artefact.run
    if run is None or not artefact.format.startswith("gguf"):
        return
    manifest = run.manifest()
    trained = stage_in(manifest, (manifest.get("stages") or [{}])[-1].get("name"))["settings"]
    values = {
        "num_ctx": run.recipe().policy.max_seq_length,
        "temperature": trained.get("temperature") or 1.0,
        "top_p": trained.get("top_p") or 1.0,
        "top_k": trained.get("top_k") or 0,
        "repeat_penalty": trained.get("repetition_penalty") or 1.0,
    }
    lines = [f"FROM ./{next(folder.glob('*.gguf')).name}", _TEMPLATE]
    system = system_prompt(run)
    if system and '"""' not in system:
        lines.append(f'SYSTEM """{clean(system)}"""')
    lines += [f"PARAMETER {name} {value}" for name, value in values.items()]
    tokenizer = load_tokenizer(artefact.path.with_name("merged_16bit"))
    lines += [f'PARAMETER stop "{tokenizer.decode([each])}"' for each in ids_that_end(tokenizer)]
    (folder / "Modelfile").write_text("\n".join([*lines, ""]), encoding="utf-8")


def system_prompt(run: RunDirectory) -> str | None:
    """What a run's prompts begin with, "" if they have no system message; None if they are plain
    text, without a template.
    """
    return system_of(first_prompt(run))


def first_prompt(run: RunDirectory) -> Prompt:
    """A prompt of a run's last recorded step; no message where it recorded none."""
    with contextlib.suppress(WorkbenchError, LookupError):
        return batch_and_place(run)[0].prompts[0]
    return []


def system_of(prompt: Prompt) -> str | None:
    """A prompt's system message, "" if it has none; None if it is plain text."""
    if isinstance(prompt, str):
        return None
    return next((each["content"] for each in prompt if each["role"] == "system"), "")
