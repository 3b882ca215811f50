"""Talking to an artefact: one question, or a conversation, with the base beside it."""

from __future__ import annotations

import contextlib
import copy
import json
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from workbench.data.prompts import question
from workbench.errors import ExportError, WorkbenchError
from workbench.exporting import serving
from workbench.exporting.artefacts import Artefact, Exported, open_artefact
from workbench.exporting.merging import sixteen_bit_base
from workbench.exporting.passport import PASSPORT, read_passport
from workbench.exporting.reading import HFReader, Reader, open_reader
from workbench.extras import need_train
from workbench.kinds import Fields
from workbench.run.turns import Turn
from workbench.task import Row, Task
from workbench.training.loading import find_model
from workbench.training.resuming import begun_task
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
    turns: list[Turn] = field(default_factory=list)  # where it was played with tools


@dataclass
class Exchange:
    """A question and its answers by author: "trained" and, where it was also asked, "base"."""

    question: str
    answers: dict[str, ChatAnswer] = field(default_factory=dict)


class Conversation:
    """A conversation with an artefact, read from its own files, and, where its base is known, with
    the base beside it.

    A model is loaded when it is first needed; an adapter and its base are one. Earlier turns are
    part of the prompt, each model's own answers, unless a run is at hand: its policy was trained on
    prompts alone, so each question is asked alone.

    Where the run's task has tools or an environment, an answer is a rollout, played by TRL's own
    loop from the task's row that asks the question, or from a row of the question alone;
    `unanswered` says why calls are not answered instead.
    """

    def __init__(
        self,
        artefact: Exported | Artefact | str | Path,
        system_prompt: str | None = None,
        max_completion_length: int | None = None,
    ) -> None:
        need_train()
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
        self._settings, self._task = settings, None
        self.unanswered = ""
        if self.artefact.run is not None and self.artefact.run.manifest().get("turns"):
            self._task, self.unanswered = _played_task(self.artefact)
        self._as_text = trained is None  # the run's prompts were plain text, without a template
        self.system_prompt = trained or "" if system_prompt is None else system_prompt
        self.max_completion_length = (
            max_completion_length or settings.get("max_completion_length") or _MOST
        )
        # at which the run sampled; 0 where that is not known
        self.temperature = float(settings.get("temperature") or 0.0)
        self.turns: list[Exchange] = []
        self._writers: dict[str, Reader] = {}

    def reply(self, question: str, temperature: float = 0.0, base: bool = False) -> Exchange:
        """Answer a question, with the base beside if it is also asked. An Interrupt ends it; the
        turn stays in `turns`.

        Raises:
            Any error, once it is noted as the answer's end.
        """
        earlier = [] if self.artefact.run else list(self.turns)
        turn = Exchange(question)
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

    def _prompt(
        self, who: str, earlier: list[Exchange], question: str
    ) -> str | list[dict[str, str]]:
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
        if self._task is not None and isinstance(writer, HFReader):
            return self._play(writer, self._task, prompt, answer, temperature)
        ids = writer.prompt_ids(prompt)
        if (room := writer.context - len(ids)) < 1:
            raise _full(len(ids), writer.context)
        written = writer.write(ids, min(room, self.max_completion_length), temperature)
        answer.text, answer.length_tokens = writer.decode(written), len(written)
        if written and written[-1] in writer.ends:
            answer.ended = "ended by EOS"
        elif len(written) == room:
            answer.ended = f"cut: the context of {writer.context} tokens is full"
        else:
            answer.ended = f"cut at {len(written)} tokens"

    def _play(
        self, writer: HFReader, task: Task, prompt: Any, answer: ChatAnswer, temperature: float
    ) -> None:
        from workbench.training.playing import check_playable, player_of

        row = self._row(task, prompt)
        check_playable(task, [row])
        rounds, most = self._settings.get("max_tool_calling_iterations"), self.max_completion_length
        asked: Fields = {"max_tool_calling_iterations": rounds, "max_completion_length": most}
        with player_of(_owner(writer), task, _drawn(writer, most, temperature), **asked) as player:
            try:
                [rollout] = player.play([row])
            except WorkbenchError:
                raise
            except Exception as error:  # of the user's own environment
                raise ExportError(
                    f"a rollout of the task {task.name!r} from {sorted(row)}: "
                    f"{type(error).__name__}: {error}",
                    rule="where a run has turns, a question is played as a rollout",
                    remedy="ask what one of the task's rows asks",
                ) from error
        answer.text, answer.turns = rollout.text, rollout.turns
        answer.length_tokens = rollout.length_tokens
        answer.ended = "ended by EOS" if rollout.finished else f"cut at {len(rollout.ids)} tokens"

    def _row(self, task: Task, prompt: list[Fields]) -> Row:
        # The row whose question it is: an environment may need its columns.
        asked = question(prompt)
        asks = (row for row in (*task.held_out, *task.rows) if question(row["prompt"]) == asked)
        return {**next(asks, {}), "prompt": prompt}


def _played_task(artefact: Artefact) -> tuple[Task | None, str]:
    # (the task whose tools answer; why none does)
    assert artefact.run is not None
    if artefact.format.startswith("gguf"):
        return None, "TRL's loop plays models of transformers, not GGUF"
    if artefact.run.manifest().get("attached"):
        return None, "your own trainer made this run, and its tools live there"
    try:
        task = begun_task(artefact.run, artefact.run.recipe())
    except WorkbenchError as error:
        return None, error.value
    if task.rollout_func:
        return None, "there is no trainer here for its rollout_func to generate with"
    return task, ""


def _owner(reader: HFReader) -> SimpleNamespace:
    # What a player reads of a policy. unsloth comes before trl, where it is there at all.
    return SimpleNamespace(
        backend_name="unsloth" if "unsloth" in sys.modules else "transformers",
        model=reader.model,
        tokenizer=reader.tokenizer,
        eos_token_ids=reader.ends,
        chat_template_kwargs=getattr(reader.tokenizer, "chat_template_kwargs", {}),
    )


def _drawn(reader: HFReader, most: int, temperature: float) -> Any:
    import torch

    def draw(inputs: Any, _: int) -> torch.Tensor:
        [ids] = inputs["input_ids"].tolist()
        if (room := reader.context - len(ids)) < 1:
            raise _full(len(ids), reader.context)
        return torch.tensor([reader.write(ids, min(room, most), temperature)])

    return draw


def _full(tokens: int, context: int) -> ExportError:
    return ExportError(
        f"the conversation has {tokens} tokens",
        rule=f"the model reads {context}, its answer included",
        remedy="start a new conversation, or ask something shorter",
    )


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
