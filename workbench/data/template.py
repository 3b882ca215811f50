"""What a policy's chat template makes of prompts: their text, parts of it that make a reward
impossible to earn, their tokens.

TRL no longer truncates prompts, and Unsloth cuts the completion instead: what is too long must be
left out here.
"""

from __future__ import annotations

import itertools
import math
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from workbench.errors import DataError
from workbench.kinds import Fields, Tokenizer
from workbench.task import Row
from workbench.workspace import encodable

_TAG = re.compile(r"<([A-Za-z_]\w*)>")
_SURROGATE = re.compile("[\ud800-\udfff]")
_ROLES = {"system", "user", "assistant", "developer", "model"}
# tags that templates of reasoning models write by themselves
_KNOWN = {"think", "thinking", "thought", "reasoning", "answer"}


def prompt_text(prompt: object, tokenizer: object) -> str:
    """The exact text that the model will see for a prompt, generation prompt included; DataError if
    it is not text.
    """
    text = (
        prompt if isinstance(prompt, str) else render(prompt, tokenizer, add_generation_prompt=True)
    )
    if (found := _SURROGATE.search(text)) is not None:
        value = f"the prompt {encodable(text[max(0, found.start() - 40) : found.end() + 40])!r}"
        rule = (
            "a tokenizer reads Unicode text, and half of a surrogate pair (\\ud800 to \\udfff) is"
            " not text"
        )
        raise DataError(value, rule=rule, remedy="read the file as UTF-8, or leave that row out")
    return text


def render(messages: Any, tokenizer: Any, add_generation_prompt: bool, **more: object) -> str:
    """Chat messages through the tokenizer's template, with the `chat_template_kwargs` that the
    tokenizer carries, and `more`.

    The only place that renders a policy's prompt, for every reader; TRL does it with the same
    arguments, not with those of a row's own column. DataError: there is no template, or it refuses
    these messages (some refuse a system message).
    """
    from jinja2 import TemplateError

    name, rule = (
        tokenizer.name_or_path,
        "chat messages become text through a template of the tokenizer that takes them",
    )
    if not tokenizer.chat_template:
        remedy = (
            "use an instruct model, put a chat_template.jinja beside the weights, or write the"
            " prompts as plain text"
        )
        raise DataError(f"{name}: no chat template", rule=rule, remedy=remedy)
    kwargs = {**getattr(tokenizer, "chat_template_kwargs", {}), **more}
    try:
        return tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=add_generation_prompt, **kwargs
        )
    except TemplateError as error:
        roles = ", ".join(message["role"] for message in messages)
        value = f"{name}: the chat template refuses messages of {roles}: {error}"
        remedy = (
            'where it takes no system message, use system_prompt = "none" and say the format in the'
            " question"
        )
        raise DataError(value, rule=rule, remedy=remedy) from error


def template_notes(rows: Sequence[Row], tokenizer: Tokenizer) -> list[str]:
    """A line for every argument of the chat template that reaches no prompt."""
    template = "" if isinstance(rows[0]["prompt"], str) else str(tokenizer.chat_template or "")
    why = "the chat template does not read it" if template else "these prompts are plain text"
    names = getattr(tokenizer, "chat_template_kwargs", {})
    unread = [name for name in names if not re.search(rf"\b{re.escape(name)}\b", template)]
    notes = [f"chat_template_kwargs: {name!r} changes nothing: {why}" for name in unread]
    if "chat_template_kwargs" in rows[0]:
        notes.append(
            "GRPOTrainer does not read the column 'chat_template_kwargs': set"
            " grpo.chat_template_kwargs"
        )
    return notes


def stream_lengths(
    rows: Iterable[Row], tokenizer: Tokenizer, progress: Callable[[int], None] | None = None
) -> Iterator[tuple[Row, int]]:
    """Each row with its prompt's length in tokens, a thousand rows at a time; `progress` is called
    with the number done.
    """
    rows, done = iter(rows), 0
    while batch := list(itertools.islice(rows, 1000)):
        # The template writes the special tokens itself; a plain prompt gets those that the
        # tokenizer adds, as in TRL.
        plain = isinstance(batch[0]["prompt"], str)
        found = tokenizer(
            [prompt_text(row["prompt"], tokenizer) for row in batch], add_special_tokens=plain
        )
        yield from zip(batch, map(len, found["input_ids"]), strict=True)
        done += len(batch)
        if progress is not None:
            progress(done)


def prompt_lengths_tokens(
    rows: Iterable[Row], tokenizer: Tokenizer, progress: Callable[[int], None] | None = None
) -> Sequence[int]:
    """Length of each row's prompt, in tokens, through the chat template: one unsigned number per
    row.
    """
    return array("L", (length for _, length in stream_lengths(rows, tokenizer, progress)))


@dataclass
class PromptLengths:
    """The length of each row's prompt in tokens; it displays as a histogram."""

    rows: Sequence[Row]
    lengths: Sequence[int]
    policy: str = ""  # whose tokenizer and template measured them
    max_tokens: int | None = None  # longer prompts are to be left out; None: none

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt within `max_tokens`."""
        within = (
            length
            for length in self.lengths
            if self.max_tokens is None or length <= self.max_tokens
        )
        return max(within, default=min(self.lengths))

    @property
    def covering(self) -> dict[float, int]:
        """For 95, 99 and 100 % of the prompts, the smallest limit (tokens) that keeps them."""
        ordered = sorted(self.lengths)
        shares = (0.95, 0.99, 1.0) if ordered else ()
        return {share: ordered[math.ceil(share * len(ordered) - 1e-9) - 1] for share in shares}

    def keep(self, max_tokens: int | None = None) -> tuple[list[Row], list[Row]]:
        """(rows whose prompt has at most `max_tokens` tokens, the others); None: as measured.
        DataError: all are longer.
        """
        limit = self.max_tokens if max_tokens is None else max_tokens
        if limit is not None and len(self.rows) and min(self.lengths) > limit:
            value = (
                f"max_prompt_length = {limit}: all {len(self.rows)} prompts are longer, the"
                f" shortest has {min(self.lengths)}"
            )
            remedy = f"raise it to at least {min(self.lengths)}; {max(self.lengths)} keeps all"
            raise DataError(
                value, rule="some prompts must be within the limit, in tokens", remedy=remedy
            )
        sides: tuple[list[Row], list[Row]] = [], []
        for row, length in zip(self.rows, self.lengths, strict=True):
            sides[limit is not None and bool(length > limit)].append(row)
        return sides

    def check_budget(self, max_completion_length: int, max_seq_length: int) -> str:
        """The arithmetic of prompt and completion (tokens), in words; DataError: they do not fit
        into the context together.
        """
        longest, room = self.longest, max_seq_length - max_completion_length
        whole = longest + max_completion_length
        if whole > max_seq_length:
            remedy = f"set max_seq_length to at least {whole}"
            if room >= min(self.lengths):
                remedy += (
                    f", or max_prompt_length to {room} (longer prompts are then left out and"
                    " counted)"
                )
            value = (
                f"the longest prompt has {longest} tokens, max_completion_length ="
                f" {max_completion_length}: {whole} tokens"
            )
            raise DataError(
                value,
                rule=f"prompt + completion fit into max_seq_length = {max_seq_length}",
                remedy=remedy,
            )
        return f"{longest} + {max_completion_length} = {whole} <= {max_seq_length} tokens: fits"

    def record(self) -> Fields:
        """For the dataset's card."""
        return {"longest_tokens": self.longest, "covering": self.covering, "policy": self.policy}

    def __repr__(self) -> str:
        return f"prompt lengths: {min(self.lengths)} to {max(self.lengths)} tokens"


class Token(NamedTuple):
    """One token of the rendered prompt, with the piece of the text that it stands for."""

    id: int
    text: str
    special: bool


@dataclass(frozen=True)
class TemplateCard:
    """What a chat template makes of a prompt. `problems` says in words what would go wrong in
    training.
    """

    text: str
    # their texts, joined, are `text` up to the last token (and what the tokenizer adds before it)
    tokens: list[Token]
    chat: bool
    survives: dict[str, bool]  # tag -> is still there after the trainer has decoded a completion
    eos_tokens: dict[int, str]  # id -> text of the tokens that end a completion
    pad_token: str | None
    # the template closes the assistant's turn with one of them; None: no chat template
    ends_turns: bool | None
    prefilled: str | None  # tag that the generation prompt writes by itself
    keeps_system: bool | None  # the system message is in the text; None: there is none
    doubled_bos: bool
    problems: list[str]
    closed: bool = False  # the generation prompt also closes that tag
    # what the template writes between the generation prompt and an assistant's words
    begins: str = ""
    thinks: str | None = None  # tag that completions of such a model begin with by themselves
    adds: str = ""  # words of the template's own: a default system message, dates


def tags_in(prompt: Any) -> tuple[str, ...]:
    """The tags that a prompt's system message (or the text itself) asks for, as ("<think>",
    "</think>").
    """
    text = (
        prompt
        if isinstance(prompt, str)
        else prompt[0]["content"]
        if prompt[0]["role"] == "system"
        else ""
    )
    names = dict.fromkeys(name for name in _TAG.findall(text) if f"</{name}>" in text)
    return tuple(tag for name in names for tag in (f"<{name}>", f"</{name}>"))


def ids_that_end(tokenizer: Any) -> list[int]:
    """The tokens that end a completion: those of the model, where the tokenizer came with one; else
    the tokenizer's EOS.
    """
    found = getattr(tokenizer, "eos_ids", None) or [tokenizer.eos_token_id]
    return [each for each in found if each in range(len(tokenizer))]  # a config may name others


def turn_end(tokenizer: Any, prompt: object) -> int | None:
    """The completion-ending token with which the template closes the assistant's turn; None: none,
    or a plain prompt.
    """
    if isinstance(prompt, str):
        return None
    _, after = _around_words(tokenizer, prompt)
    after = after.lstrip()
    return next(
        (
            each
            for each in ids_that_end(tokenizer)
            if after.startswith(tokenizer.convert_ids_to_tokens(each))
        ),
        None,
    )


def _around_words(tokenizer: object, prompt: Any) -> tuple[str, str]:
    # What stands before the words of an assistant that has answered, and after them.
    probe = "the policy's own words"
    whole = render(
        [*prompt, {"role": "assistant", "content": probe}], tokenizer, add_generation_prompt=False
    )
    before, _, after = whole.rpartition(probe)
    return before, after


def template_card(
    tokenizer: Any, prompt: object, tags: Sequence[str] | None = None
) -> TemplateCard:
    """Render a prompt (chat messages or text) and check what matters; DataError if the template
    refuses it.

    Args:
        tags: what the reward functions look for in completions; None: what the system message asks
            for.
    """
    chat = not isinstance(prompt, str)
    tags = tags_in(prompt) if tags is None else tags
    text = prompt_text(prompt, tokenizer)
    tokens = _tokens(tokenizer, text, chat)
    bos = tokenizer.bos_token_id
    turns = _turns(tokenizer, prompt, text, tags) if chat else _Turns()
    ids = {tag: tokenizer(f"x{tag}y", add_special_tokens=False)["input_ids"] for tag in tags}
    card = TemplateCard(
        text=text,
        tokens=tokens,
        chat=chat,
        survives={tag: tag in tokenizer.decode(ids[tag], skip_special_tokens=True) for tag in tags},
        eos_tokens={
            each: tokenizer.convert_ids_to_tokens(each) for each in ids_that_end(tokenizer)
        },
        pad_token=tokenizer.pad_token,
        ends_turns=turns.ends,
        prefilled=turns.prefilled,
        keeps_system=turns.keeps_system,
        doubled_bos=bos is not None and [token.id for token in tokens[:2]] == [bos, bos],
        problems=[*turns.changes],
        closed=bool(turns.prefilled) and f"</{turns.prefilled}>" in turns.opening,
        begins=turns.begins,
        thinks=turns.thinks,
        adds=turns.adds,
    )
    card.problems.extend(
        problem for there, problem in _problems(tokenizer, card, tags, turns.opening) if there
    )
    return card


class _Turns(NamedTuple):
    """What a template makes of the turns of a chat; the fields that `TemplateCard` has mean the
    same there.
    """

    ends: bool | None = None
    prefilled: str | None = None
    keeps_system: bool | None = None
    opening: str = ""  # the generation prompt
    begins: str = ""
    thinks: str | None = None
    adds: str = ""
    changes: Sequence[str] = ()  # problems: the messages that it drops or changes


def _turns(tokenizer: object, prompt: Any, text: str, tags: Sequence[str]) -> _Turns:
    # Calls of tools have no words, and pictures are none.
    said = [
        (one["role"], one["content"])
        for one in prompt
        if isinstance(one.get("content"), str) and one["content"].strip()
    ]
    before, _ = _around_words(tokenizer, prompt)
    without = render(prompt, tokenizer, add_generation_prompt=False)
    opening = text[len(without) :] if text.startswith(without) else text[-60:]
    begins = before.removeprefix(text) if before.startswith(text) else ""
    wanted = _KNOWN | {tag.strip("</>") for tag in tags}

    def first_tag(piece: str) -> str | None:
        return next((name for name in _TAG.findall(piece) if name in wanted), None)

    prefilled = first_tag(opening)
    thinks = first_tag(begins)
    if _switched(tokenizer) and not prefilled:
        quiet = render(prompt, tokenizer, add_generation_prompt=True, enable_thinking=False)
        tail = quiet.rpartition(said[-1][1].strip())[2] if said else ""
        thinks = thinks or first_tag(tail)
    changed = {role: how for role, content in said if (how := _changed(content, text))}
    changes = []
    for role, how in changed.items():
        with_it = ", and the format asked for with it" if role == "system" else ""
        changes.append(f"the {role} message {how}{with_it}")
    return _Turns(
        ends=turn_end(tokenizer, prompt) is not None,
        prefilled=prefilled,
        keeps_system=(
            "system" not in changed
            if prompt[0]["role"] == "system" and prompt[0]["content"]
            else None
        ),
        opening=opening,
        begins=begins,
        thinks=thinks,
        adds=_words_of_its_own(tokenizer, [content.strip() for _, content in said], text),
        changes=changes,
    )


def _switched(tokenizer: Any) -> bool:
    return "enable_thinking" in str(tokenizer.chat_template)


def _problems(
    tokenizer: Any, card: TemplateCard, tags: Sequence[str], opening: str
) -> Iterator[tuple[Any, str]]:
    """(whether it is there, in words) of each problem that a template can have, the gravest
    first.
    """
    piece, back = misread(tokenizer, card.text)
    yield piece, f"the tokenizer does not give the text back: {piece!r} becomes {back!r}"
    lost = " ".join(tag for tag in tags if not card.survives[tag])
    yield (
        lost,
        (
            f"{lost}: special tokens, which vanish when the trainer decodes a completion, so a"
            " reward that looks for them can never pay; use tags that are plain text"
        ),
    )
    yield (
        not card.eos_tokens,
        (
            "the tokenizer has no EOS token: the policy cannot end its turn, and every completion"
            " is cut"
        ),
    )
    ends = ", ".join(card.eos_tokens.values())
    yield (
        card.eos_tokens and card.ends_turns is False,
        (
            "the template closes the assistant's turn with none of the tokens that end a"
            f" completion ({ends}): a policy trained on it may end its turn with another token, and"
            " its completions then run to the limit"
        ),
    )
    written = f"<{card.prefilled}>"
    yield (
        card.prefilled and not card.closed,
        (
            f"the template writes {written} by itself: completions begin after it, so a reward that"
            f" wants to see {written} in the completion can never pay"
        ),
    )
    yield (
        card.closed and written in tags,
        (
            f"the template opens and closes {written} by itself: completions begin after it, and"
            f" need no {written}, so a reward that wants to see it pays only where the policy"
            " writes another"
        ),
    )
    off = (
        '; chat_template_kwargs = {"enable_thinking": False} turns that off'
        if _switched(tokenizer)
        else ""
    )
    yield (
        card.thinks and tags and f"<{card.thinks}>" not in tags,
        (
            f"the model begins its completions with <{card.thinks}> by itself, so a reward that"
            f" wants them to begin with {''.join(tags[:1])} does not pay{off}"
        ),
    )
    left = tokenizer.decode(
        tokenizer(card.begins, add_special_tokens=False)["input_ids"], skip_special_tokens=True
    )
    yield (
        opening and any(token in card.begins for token in tokenizer.all_special_tokens),
        (
            f"an assistant's words come after {card.begins!r}, of which decoding leaves {left!r},"
            " as the rest are special tokens: a reward that wants a completion to begin with a tag"
            " can never pay"
        ),
    )
    yield (
        card.chat and not opening and card.begins.strip(),
        (
            "the template writes no generation prompt: the policy has to begin its own turn, and"
            " may continue the user's"
        ),
    )
    yield card.doubled_bos, "the text begins with two BOS tokens"
    dated = card.chat and _dated(tokenizer, card.text)
    yield dated, "the template writes today's date: tomorrow the same prompt is a different text"
    yield card.pad_token is None, "the tokenizer has no padding token; trainers then pad with EOS"


def misread(tokenizer: Any, text: str) -> tuple[str, str]:
    """(a line of the text, what is left of it once it was encoded and decoded), for the first that
    changes; else two "".

    White space beside special tokens does not count: some are made to absorb it.
    """
    added = sorted(filter(None, tokenizer.get_added_vocab()), key=len, reverse=True)
    for piece in re.split("|".join(map(re.escape, added)) or "$^", text):
        ids = tokenizer(piece, add_special_tokens=False)["input_ids"]
        back = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        if back.strip() != piece.strip():
            lines = itertools.zip_longest(
                *(own.strip().split("\n") for own in (piece, back)), fillvalue=""
            )
            return next((line[:60], other[:60]) for line, other in lines if line != other)
    return "", ""


def _changed(content: str, text: str) -> str:
    # What a template has done to a message, in words; "": it is in the text, but for white space at
    # its ends.
    if content.strip() in text:
        return ""
    if " ".join(content.split()) in " ".join(text.split()):
        return "has other white space in the text: the template changes it"
    gone = [tag for tag in dict.fromkeys(re.findall(r"</?\w+>", content)) if tag not in text]
    return "is not in the text: the template drops or changes it" + (
        f" (without {' '.join(gone)})" if gone else ""
    )


def _words_of_its_own(tokenizer: Any, said: Sequence[str], text: str) -> str:
    for own in (*said, *tokenizer.get_added_vocab()):
        text = text.replace(own, "\0") if own else text
    pieces = [" ".join(piece.split()) for piece in text.split("\0") if piece.strip() not in _ROLES]
    return (
        " ".join(pieces).strip()
        if sum(word.isalpha() for piece in pieces for word in piece.split()) > 2
        else ""
    )


def _dated(tokenizer: Any, text: str) -> bool:
    forms = re.findall(r"strftime_now\(\s*(['\"])(.+?)\1", str(tokenizer.chat_template))
    return any(datetime.now().strftime(form) in text for _, form in forms)


def _tokens(tokenizer: Any, text: str, chat: bool) -> list[Token]:
    special = set(tokenizer.all_special_ids)
    found = tokenizer(text, add_special_tokens=not chat, return_offsets_mapping=tokenizer.is_fast)
    # A character can take several tokens, and a token alone can lose its space: so the text is cut,
    # not put together.
    ends = (
        [end for _, end in found["offset_mapping"]]
        if tokenizer.is_fast
        else [0] * len(found["input_ids"])
    )
    tokens, done = [], 0
    for number, end in zip(found["input_ids"], ends, strict=True):
        piece = text[done : max(done, end)] if end else tokenizer.decode([number])
        tokens.append(Token(number, piece, number in special))
        done = max(done, end)
    return tokens
