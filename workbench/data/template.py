"""The template card: the exact text that the model will see, and what of it can make a reward impossible to earn."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from workbench.data.lengths import prompt_text, render

_TAG = re.compile(r"<([A-Za-z_]\w*)>")
# Tags that templates of reasoning models write by themselves.
_KNOWN = {"think", "thinking", "thought", "reasoning", "answer"}


class Token(NamedTuple):
    """One token of the rendered prompt, with the piece of the text that it stands for."""

    id: int
    text: str
    special: bool


@dataclass(frozen=True)
class TemplateCard:
    """What a chat template makes of a prompt. `problems` says in words what would go wrong in training."""

    text: str
    tokens: list[Token]  # their texts, joined, are `text` (and what the tokenizer adds before it)
    chat: bool
    survives: dict[str, bool]  # tag -> is still there after the trainer has decoded a completion
    eos_token: str | None
    pad_token: str | None
    ends_turns: bool | None  # the template closes the assistant's turn with the EOS token; None: no chat template
    prefilled: str | None  # tag that the generation prompt writes by itself
    keeps_system: bool | None  # the system message is in the text; None: there is none
    doubled_bos: bool
    problems: list[str] = field(default_factory=list)


def tags_in(prompt: Any) -> tuple[str, ...]:
    """The tags that a prompt's system message (or the text itself) asks for, opening and closing.

    >>> tags_in([{"role": "system", "content": "<think>why</think> then <answer>what</answer>, if a < b"}])
    ('<think>', '</think>', '<answer>', '</answer>')
    """
    text = prompt if isinstance(prompt, str) else prompt[0]["content"] if prompt[0]["role"] == "system" else ""
    names = dict.fromkeys(name for name in _TAG.findall(text) if f"</{name}>" in text)
    return tuple(tag for name in names for tag in (f"<{name}>", f"</{name}>"))


def template_card(tokenizer: Any, prompt: Any, tags: Sequence[str] | None = None) -> TemplateCard:
    """Render a prompt and look at what matters.

    Args:
        tokenizer: the policy's.
        prompt: chat messages or text.
        tags: what the reward functions look for in completions; None: what the system message asks for.

    Raises:
        DataError: if the template refuses the prompt.
    """
    chat, tags = not isinstance(prompt, str), tags_in(prompt) if tags is None else tags
    text = prompt_text(prompt, tokenizer)
    tokens = _tokens(tokenizer, text, chat)
    system = prompt[0]["content"] if chat and prompt[0]["role"] == "system" else ""
    bos = tokenizer.bos_token_id

    def survives(tag: str) -> bool:
        ids = tokenizer(f"x{tag}y", add_special_tokens=False)["input_ids"]
        return tag in tokenizer.decode(ids, skip_special_tokens=True)

    card = TemplateCard(
        text=text,
        tokens=tokens,
        chat=chat,
        survives={tag: survives(tag) for tag in tags},
        eos_token=tokenizer.eos_token,
        pad_token=tokenizer.pad_token,
        ends_turns=_ends_turns(tokenizer, prompt) if chat else None,
        prefilled=_prefilled(tokenizer, prompt, text, tags) if chat else None,
        keeps_system=system.strip() in text if system else None,
        doubled_bos=bos is not None and [token.id for token in tokens[:2]] == [bos, bos],
    )
    card.problems.extend(_problems(card))
    return card


def _tokens(tokenizer: Any, text: str, chat: bool) -> list[Token]:
    special = set(tokenizer.all_special_ids)
    found = tokenizer(text, add_special_tokens=not chat, return_offsets_mapping=tokenizer.is_fast)
    # A character can take several tokens, and a token alone can lose its space: so the text is cut, not put together.
    ends = [end for _, end in found["offset_mapping"]] if tokenizer.is_fast else [0] * len(found["input_ids"])
    tokens, done = [], 0
    for number, end in zip(found["input_ids"], ends, strict=True):
        piece = text[done : max(done, end)] if end else tokenizer.decode([number])
        tokens.append(Token(number, piece, number in special))
        done = max(done, end)
    return tokens


def _ends_turns(tokenizer: Any, prompt: Any) -> bool:
    probe = "the policy's own words"
    whole = render([*prompt, {"role": "assistant", "content": probe}], tokenizer, add_generation_prompt=False)
    after = whole.rpartition(probe)[2].lstrip()
    return bool(tokenizer.eos_token) and after.startswith(tokenizer.eos_token)


def _prefilled(tokenizer: Any, prompt: Any, text: str, tags: Sequence[str]) -> str | None:
    without = render(prompt, tokenizer, add_generation_prompt=False)
    opening = text[len(without) :] if text.startswith(without) else text[-60:]
    wanted = _KNOWN | {tag.strip("</>") for tag in tags}
    return next((name for name in _TAG.findall(opening) if name in wanted), None)


def _problems(card: TemplateCard) -> list[str]:
    lost = " ".join(tag for tag, survives in card.survives.items() if not survives)
    found = {
        f"{lost}: special tokens, which vanish when the trainer decodes a completion, so a reward that looks for them can "
        "never pay; use tags that are plain text": lost,
        "the tokenizer has no EOS token: the policy cannot end its turn, and every completion is cut": not card.eos_token,
        f"the template does not close the assistant's turn with EOS ({card.eos_token}): a policy trained on it may end its turn "
        "with another token, and its completions then run to the limit": card.eos_token and card.ends_turns is False,
        f"the template writes <{card.prefilled}> by itself: completions begin after it, so a reward that wants to see "
        f"<{card.prefilled}> in the completion can never pay": card.prefilled,
        "the system message is not in the text: the template drops or changes it, and the format asked for with "
        "it": card.keeps_system is False,
        "the text begins with two BOS tokens": card.doubled_bos,
        "the tokenizer has no padding token; trainers then pad with EOS": card.pad_token is None,
    }
    return [problem for problem, there in found.items() if there]
