"""Talking to an artefact: one question, or a conversation, with the base beside it."""

from __future__ import annotations

import contextlib
import copy
import json
from dataclasses import dataclass, field, replace
from pathlib import Path

from workbench.errors import ExportError, WorkbenchError
from workbench.exporting import serving
from workbench.exporting.artefacts import Artefact, Exported, open_artefact
from workbench.exporting.merging import sixteen_bit_base
from workbench.exporting.passport import PASSPORT, read_passport
from workbench.exporting.reading import Reader, open_reader
from workbench.training.loading import find_model
from workbench.workspace import resolve, shown

BASE, TRAINED = "base", "trained"
_MOST = 256  # tokens of an answer, where no run says how long its completions may be


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
    conversation = Conversation(artefact, system_prompt, max_completion_length)
    return conversation.reply(question, temperature).answers[TRAINED].text


@dataclass
class ChatAnswer:
    """What one model wrote; `ended` says in words why it stopped."""

    text: str = ""
    length_tokens: int = 0
    ended: str = ""


@dataclass
class Turn:
    """A question and its answers by author: "trained" and, where it was also asked, "base"."""

    question: str
    answers: dict[str, ChatAnswer] = field(default_factory=dict)


class Conversation:
    """A conversation with an artefact, read from its own files, and, where its base is known, with
    the base beside it.

    A model is loaded when it is first needed; an adapter and its base are one. Earlier turns are
    part of the prompt, each model's own answers, unless a run is at hand: its policy was trained on
    prompts alone, so each question is asked alone.
    """

    def __init__(
        self,
        artefact: Exported | Artefact | str | Path,
        system_prompt: str | None = None,
        max_completion_length: int | None = None,
    ) -> None:
        self.artefact = _opened(artefact)
        trained, settings = "", {}
        if (run := self.artefact.run) is not None:
            trained = serving.system_prompt(run)
            settings = run.manifest().get("settings", {}).get("in_force", {})
        else:
            # none, or a passport that was changed, says nothing
            with contextlib.suppress(ExportError, LookupError):
                trained = serving.system_of(
                    read_passport(self.artefact.path)["rollouts"][0]["prompt"]
                )
        self._as_text = trained is None  # the run's prompts were plain text, without a template
        self.system_prompt = trained or "" if system_prompt is None else system_prompt
        self.max_completion_length = (
            max_completion_length or settings.get("max_completion_length") or _MOST
        )
        # at which the run sampled; 0 where that is not known
        self.temperature = float(settings.get("temperature") or 0.0)
        self.turns: list[Turn] = []
        self._writers: dict[str, Reader] = {}

    def reply(self, question: str, temperature: float = 0.0, base: bool = False) -> Turn:
        """Answer a question, with the base beside if it is also asked. An Interrupt ends it; the
        turn stays in `turns`.

        Raises:
            Any error, once it is noted as the answer's end.
        """
        earlier = [] if self.artefact.run else list(self.turns)
        turn = Turn(question)
        self.turns.append(turn)
        for who in (TRAINED, BASE) if base else (TRAINED,):
            answer = turn.answers[who] = ChatAnswer()
            try:
                self._write(who, self._prompt(who, earlier, question), answer, temperature)
            except KeyboardInterrupt:
                answer.ended = "stopped"
                raise
            except WorkbenchError as error:
                answer.ended = f"failed: {error.value}"
                raise
            except BaseException as error:
                answer.ended = f"failed: {type(error).__name__}: {error}"
                raise
        return turn

    def _prompt(self, who: str, earlier: list[Turn], question: str) -> str | list[dict[str, str]]:
        if self._as_text:
            return question
        messages = [("system", self.system_prompt)] if self.system_prompt else []
        for turn in earlier:
            if who in turn.answers and (text := turn.answers[who].text):
                messages += [("user", turn.question), ("assistant", text)]
        messages.append(("user", question))
        return [{"role": role, "content": content} for role, content in messages]

    def _write(self, who: str, prompt: object, answer: ChatAnswer, temperature: float) -> None:
        if who not in self._writers:
            self._writers |= _load(self.artefact, who)
        writer = self._writers[who]
        ids = writer.prompt_ids(prompt)
        if (room := writer.context - len(ids)) < 1:
            raise ExportError(
                f"the conversation has {len(ids)} tokens",
                rule=f"the model reads {writer.context}, its answer included",
                remedy="start a new conversation, or ask something shorter",
            )
        written = writer.write(ids, min(room, self.max_completion_length), temperature)
        answer.text, answer.length_tokens = writer.decode(written), len(written)
        if written and written[-1] in writer.ends:
            answer.ended = "ended by EOS"
        elif len(written) == room:
            answer.ended = f"cut: the context of {writer.context} tokens is full"
        else:
            answer.ended = f"cut at {len(written)} tokens"


def _load(artefact: Artefact, who: str) -> dict[str, Reader]:
    # What writes, by who it is: an adapter and its base at once, everything else by itself.
    if who == BASE and not artefact.base:
        raise ExportError(
            f"{shown(artefact.path)}: its base is not known",
            rule="an artefact's passport names its base",
            remedy="give an artefact of `wb.export`",
        )
    if artefact.format == "adapter":
        reader = open_reader(artefact)
        alone = copy.copy(reader)
        vars(alone)["alone"] = True
        return {TRAINED: reader, BASE: alone}
    if who == BASE:
        artefact = replace(artefact, path=Path(find_model(artefact.base)), format="merged_16bit")
    return {who: open_reader(artefact)}


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
