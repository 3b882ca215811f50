"""Asking an artefact, and its base beside it: each question is asked alone, as in training."""

from __future__ import annotations

import contextlib
import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from workbench.base.errors import ExportError
from workbench.base.extras import need_train
from workbench.base.workspace import resolve, shown
from workbench.exporting import serving
from workbench.exporting.artefacts import PASSPORT, Artefact, Exported, open_artefact
from workbench.exporting.merging import sixteen_bit_base
from workbench.exporting.passport import read_passport
from workbench.exporting.reading import Reader, open_reader
from workbench.training.plan.loading import find_model

_MOST = 256  # tokens of an answer, where no run says how long its completions may be


class ChatAnswer(NamedTuple):
    """What a model wrote; `ended` says in words why it stopped."""

    text: str
    length_tokens: int
    ended: str


def ask(
    artefact: Exported | Artefact | str | Path,
    question: str,
    system_prompt: str | None = None,
    *,
    temperature: float = 0.0,
    max_completion_length: int | None = None,
) -> str:
    """Ask an exported model one question.

    >>> wb.ask(exported, "What is 15 + 27?")
    '...'

    Args:
        artefact: one of an export's; an export, whose `merged_16bit` is then asked; or the folder
            of any saved model or adapter.
        system_prompt: None: the one that its run was trained with, from the run or the passport;
            "": none.
        temperature: 0 takes the likeliest token every time.
        max_completion_length: in tokens; None: the run's own.

    Raises:
        PolicyError, DataError, ExportError: if it cannot be loaded, its template refuses the
            messages, or they are too long.
    """
    return (
        Exchange(artefact, system_prompt, max_completion_length).answer(question, temperature).text
    )


class Exchange:
    """An artefact that answers, read from its own files, and its base where that is known.

    A model is loaded when it is first asked; an adapter and its base are one.
    """

    def __init__(
        self,
        artefact: Exported | Artefact | str | Path,
        system_prompt: str | None = None,
        max_completion_length: int | None = None,
    ) -> None:
        need_train()
        self.artefact = _opened(artefact)
        settings, trained = {}, ""
        if (run := self.artefact.run) is not None:
            settings = run.manifest().get("settings", {}).get("in_force", {})
            trained = serving.system_prompt(run)
        else:
            # none, or a passport that was changed, says nothing
            with contextlib.suppress(ExportError, LookupError):
                trained = serving.system_of(read_passport(self.artefact.path)["prompt"])
        self.as_text = trained is None  # the run's prompts were plain text, without a template
        self.system_prompt = trained or "" if system_prompt is None else system_prompt
        self.max_completion_length = (
            max_completion_length or settings.get("max_completion_length") or _MOST
        )
        # at which the run sampled; 0 where that is not known
        self.temperature = float(settings.get("temperature") or 0.0)
        self._readers: dict[bool, Reader] = {}

    def answer(self, question: str, temperature: float = 0.0, base: bool = False) -> ChatAnswer:
        """What the model writes, or its `base`."""
        reader = self._reader(base)
        system = [{"role": "system", "content": self.system_prompt}] if self.system_prompt else []
        messages = [*system, {"role": "user", "content": question}]
        ids = reader.prompt_ids(question if self.as_text else messages)
        if (room := reader.context - len(ids)) < 1:
            raise ExportError(
                f"the question has {len(ids)} tokens",
                rule=f"the model reads {reader.context}, its answer included",
                remedy="ask something shorter",
            )
        written = reader.write(ids, min(room, self.max_completion_length), temperature)
        ended = "ended by EOS" if written and written[-1] in reader.ends else "cut"
        return ChatAnswer(reader.decode(written), len(written), ended)

    def _reader(self, base: bool) -> Reader:
        artefact = self.artefact
        if base and not artefact.base:
            raise ExportError(
                f"{shown(artefact.path)}: its base is not known",
                rule="an artefact's passport names its base",
                remedy="give an artefact of `wb.export`",
            )
        if base not in self._readers and artefact.format == "adapter":
            alone = copy.copy(reader := open_reader(artefact))
            vars(alone)["alone"] = True
            self._readers = {False: reader, True: alone}
        elif base not in self._readers:
            if base:
                place = Path(find_model(artefact.base))
                artefact = replace(artefact, path=place, format="merged_16bit")
            self._readers[base] = open_reader(artefact)
        return self._readers[base]


def _opened(artefact: Exported | Artefact | str | Path) -> Artefact:
    if isinstance(artefact, Exported):
        first = next(iter(artefact.artefacts.values()))
        return artefact.artefacts.get("merged_16bit", first)
    if isinstance(artefact, Artefact):
        return artefact
    folder = resolve(artefact)
    if (folder / PASSPORT).is_file():
        return open_artefact(folder)
    if not (config := folder / "adapter_config.json").is_file():
        return Artefact(Path(find_model(artefact)), "merged_16bit", base="")
    base = json.loads(config.read_text(encoding="utf-8"))["base_model_name_or_path"]
    return Artefact(folder, "adapter", base=sixteen_bit_base(base))
