"""How an artefact is served elsewhere: an Ollama Modelfile, and the commands for vLLM, llama.cpp and MLX."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from pathlib import Path
from typing import Any

from workbench.data.template import ids_that_end, prompt_text
from workbench.errors import WorkbenchError
from workbench.exporting.about import clean
from workbench.exporting.artefacts import Artefact
from workbench.run.directory import RunDirectory
from workbench.run.rollouts import batch_and_place, stage_in
from workbench.training.loading import load_tokenizer

_UNPROVEN = """\
# Derived from the model's own chat template, which it matches in Python. Ollama's template language does not run here, so
# what Ollama makes of it is unproven; `OLLAMA_DEBUG=1 ollama serve` logs the prompts that it sends."""
_UNKNOWN = """\
# The model's chat template does more than wrap each message by its role, and has no equivalent here. The client renders the
# prompt with the template in the GGUF file, and asks with "raw": true."""
_GO = (
    "@bos@{{ if .System }}@head@{{ .System }}@foot@{{ else }}@default@{{ end }}{{ range .Messages }}"
    '{{ if eq .Role "user" }}@opens@{{ .Content }}@turn@'
    '{{ else if eq .Role "assistant" }}@answer@{{ .Content }}@closes@{{ end }}{{ end }}@asks@'
)


def commands(artefact: Artefact) -> dict[str, str]:
    """Name of the software -> the line that serves or converts this artefact, in its folder."""
    name = artefact.run.name.lower() if artefact.run else "policy"
    if artefact.format.startswith("gguf"):
        serve = f"llama-server --model {shlex.quote(f'./{artefact.gguf.name}')} --jinja"
        return {"llama.cpp": serve, "Ollama": f"ollama create {name} -f ./Modelfile && ollama run {name}"}
    if artefact.format == "adapter":
        rank = artefact.run.recipe().lora.r if artefact.run else 16
        most = next((each for each in (8, 16, 32, 64, 128, 256, 320) if rank <= each), 512)  # vLLM knows no other
        serve = f"vllm serve {shlex.quote(artefact.base)} --enable-lora --max-lora-rank {most} --lora-modules {name}=."
        return {"vLLM": serve, "transformers": "peft.AutoPeftModelForCausalLM.from_pretrained('.')"}
    found = {"vLLM": "vllm serve .", "transformers": "transformers.pipeline(\"text-generation\", model='.')"}
    return found | ({"MLX": "mlx_lm.convert --hf-path . -q"} if artefact.format == "merged_16bit" else {})


def write(folder: Path, artefact: Artefact) -> None:
    """Write the Modelfile of a `gguf_…` artefact into the folder where its files lie; other formats need none.

    Its template is that of the `merged_16bit` beside the place where the artefact will be.
    """
    if not artefact.format.startswith("gguf"):
        return
    tokenizer, run = load_tokenizer(artefact.path.with_name("merged_16bit")), artefact.run
    template = go_template(tokenizer)
    manifest = run.manifest() if run else {}
    trained = stage_in(manifest, (manifest.get("stages") or [{}])[-1].get("name"))["settings"]
    values: dict[str, Any] = {"num_ctx": run.recipe().policy.max_seq_length} if run else {}
    values |= {"temperature": trained.get("temperature") or 1.0, "top_p": trained.get("top_p") or 1.0}
    values |= {"top_k": trained.get("top_k") or 0, "repeat_penalty": trained.get("repetition_penalty") or 1.0}
    lines = [f"FROM ./{next(folder.glob('*.gguf')).name}", _UNPROVEN if template else _UNKNOWN]
    lines.append(f'TEMPLATE """{template or "{{ .Prompt }}"}"""')
    told = system_prompt(run) if template and run else None
    lines += [f'SYSTEM """{clean(told)}"""'] if told and '"""' not in told else []
    lines += [f"PARAMETER {name} {value}" for name, value in values.items()]
    lines += [f'PARAMETER stop "{tokenizer.decode([each])}"' for each in ids_that_end(tokenizer)]
    (folder / "Modelfile").write_text("\n".join([*lines, ""]), encoding="utf-8")


def go_template(tokenizer: Any) -> str | None:
    """A chat template in Ollama's language; None if it does more than wrap each message by its role.

    It consists of what the model's own template writes around the messages of three conversations, and is given only if the
    same pieces, put together in Python, render others exactly as that template does.
    """
    try:
        pieces = _pieces(tokenizer)
        for system in ("", "x\ny")[: 1 + bool(pieces["head"])]:
            for turns in (["a"], ["a\n\nb", "c", "d"], ["a", "b", "c", "d", "e"]):
                text = f"{pieces['head']}{system}{pieces['foot']}" if system else pieces["default"]
                for index, said in enumerate(turns):
                    before, after = (("opens", "turn"), ("answer", "closes"))[index % 2]
                    text += f"{pieces[before]}{said}{pieces[after]}"
                if pieces["bos"] + text + pieces["asks"] != _rendered(tokenizer, system, *turns):
                    return None
    except (ValueError, WorkbenchError):
        return None
    if any("{{" in piece or '"""' in piece for piece in pieces.values()):
        return None
    return re.sub(r"@(\w+)@", lambda found: pieces[found[1]], _GO)


def _pieces(tokenizer: Any) -> dict[str, str]:
    # The text around each message; ValueError if one does not stand there as it is.
    def around(*said: str) -> list[str]:
        pattern = "(.*)".join(["", *(re.escape(text) for text in said if text), ""])
        if found := re.fullmatch(pattern, _rendered(tokenizer, *said), re.DOTALL):
            return list(found.groups())
        raise ValueError(said)

    (start, ends), (_, middle, between, _) = around("", "first?"), around("", "first?", "yes", "more?")
    bos = tokenizer.bos_token or ""
    bos = bos if start.startswith(bos) else ""
    start = start.removeprefix(bos)
    opens, turn = os.path.commonprefix([start[::-1], between[::-1]])[::-1], os.path.commonprefix([ends, middle])  # noqa: RUF071
    pieces = {"bos": bos, "default": start.removesuffix(opens), "opens": opens, "turn": turn, "asks": ends.removeprefix(turn)}
    pieces |= {"answer": middle.removeprefix(turn), "closes": between.removesuffix(opens), "head": "", "foot": ""}
    with contextlib.suppress(WorkbenchError):  # some templates refuse a system message
        head, foot, _ = around("be brief", "first?")
        pieces |= {"head": head.removeprefix(bos), "foot": foot.removesuffix(opens)}
    return pieces


def _rendered(tokenizer: Any, system: str, *turns: str) -> str:
    messages = [{"role": ("user", "assistant")[index % 2], "content": said} for index, said in enumerate(turns)]
    return prompt_text([{"role": "system", "content": system}] * bool(system) + messages, tokenizer)


def system_prompt(run: RunDirectory) -> str | None:
    """What a run's prompts begin with, "" if they have no system message; None if they are plain text, without a template."""
    with contextlib.suppress(WorkbenchError, LookupError):  # a run without a record says nothing of its prompts
        return system_of(batch_and_place(run)[0].prompts[0])
    return ""


def system_of(prompt: Any) -> str | None:
    """A prompt's system message, "" if it has none; None if it is plain text."""
    return None if isinstance(prompt, str) else next((own["content"] for own in prompt if own["role"] == "system"), "")
