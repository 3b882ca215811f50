"""The chat templates that TRL ships, all of them, on a made vocabulary: what the card says of each, beside what TRL says.

The table is families.json; where a new TRL changes it,
`PYTHONPATH=tests python tests/data/test_families.py` writes it anew, and its diff is the news.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from made_tokenizers import made_tokenizer, special_tokens

from workbench.base.errors import DataError
from workbench.data.prompts import SYSTEM_PROMPT
from workbench.data.rendering import render
from workbench.data.template import template_card

TABLE = Path(__file__).with_name("families.json")
TEMPLATES = Path(importlib.util.find_spec("trl").origin).parent / "chat_templates"
FAMILIES = sorted(file.stem for file in TEMPLATES.glob("*.jinja") if not file.stem.endswith("_training"))
SYSTEM, USER = {"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": "What is 2 + 3?"}
WORDS = "It is five."
CALL = {"type": "function", "function": {"name": "lookup", "arguments": {"word": "five"}}}
TOOLS = [
    USER,
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "name": "lookup", "content": "a number"},
]


def tokenizer_of(family: str) -> Any:
    """With the token that the template ends a turn with as its EOS token."""
    made = made_tokenizer((TEMPLATES / f"{family}.jinja").read_text(encoding="utf-8"))
    ends = ends_of(made)
    if ends and ends[0] in made.get_vocab():
        made.eos_token = ends[0]
    return made


def ends_of(tokenizer: Any) -> list[str]:
    """The special tokens with which the template ends an assistant's turn, another turn following or none."""
    ends = []
    for after in ([], [USER]):
        try:
            text = render([USER, {"role": "assistant", "content": WORDS}, *after], tokenizer, add_generation_prompt=False)
        except DataError:
            continue
        rest = text.rpartition(WORDS)[2].lstrip() if WORDS in text else ""
        ends += [token for token in [*special_tokens(rest), *tokenizer.all_special_tokens] if rest.startswith(token)][:1]
    return list(dict.fromkeys(ends))


def tools_of(tokenizer: Any) -> tuple[bool, bool | None]:
    """(whether a call and its result are in the text, whether a turn is the same text with the next one behind it)."""
    for arguments in ({"word": "five"}, '{"word": "five"}'):  # some templates take a text only
        messages = [
            TOOLS[0],
            {**TOOLS[1], "tool_calls": [{**CALL, "function": {"name": "lookup", "arguments": arguments}}]},
            TOOLS[2],
        ]
        try:
            before = render(messages[:2], tokenizer, add_generation_prompt=False)
            after = render(messages, tokenizer, add_generation_prompt=True)
        except DataError:
            return False, None
        except TypeError:
            continue
        return all(word in after for word in ("lookup", "word", "five", "a number")), after.startswith(before)
    return False, None


def row_of(family: str) -> dict[str, Any]:
    """What is in the table."""
    tokenizer = tokenizer_of(family)
    try:
        plain = template_card(tokenizer, [USER], tags=("<reasoning>", "</reasoning>"))
    except DataError as error:
        return {"user": f"refused: {error.value.rpartition(': ')[2]}"}
    try:
        card = template_card(tokenizer, [SYSTEM, USER])
        folded = card.text.startswith(plain.text.partition(USER["content"])[0])
        system = "dropped" if not card.keeps_system else "folded into the user's turn" if folded else "kept"
    except DataError as error:
        system = f"refused: {error.value.rpartition(': ')[2]}"
    tools, prefix = tools_of(tokenizer)
    prefilled = plain.prefilled and f"<{plain.prefilled}>" + (f"</{plain.prefilled}>" if plain.closed else "")
    return {
        "system": system,
        "user": "kept" if USER["content"] in plain.text else "dropped",
        "prefilled": prefilled,
        "thinks": plain.thinks,
        "answer after": plain.begins.strip(),
        "adds words": bool(plain.adds),
        "date": any("today's date" in problem for problem in plain.problems),
        "tags survive": all(plain.survives.values()),
        "turn ends with": ends_of(tokenizer),
        "BOS twice": plain.doubled_bos,
        "tools rendered": tools,
        "prefix-preserving": prefix,
        "problems": len(plain.problems),
    }


@pytest.fixture(scope="module")
def rows():
    return {family: row_of(family) for family in FAMILIES}


def test_the_table_is_the_installed_trls(rows):
    assert len(FAMILIES) >= 34
    assert rows == json.loads(TABLE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("family", FAMILIES)
def test_trl_finds_the_same(family, rows):
    from jinja2 import TemplateError
    from trl.chat_template_utils import (
        get_training_chat_template,
        is_chat_template_prefix_preserving,
        is_chat_template_stop_token_trained,
        supports_tool_calling,
    )

    row, tokenizer = rows[family], tokenizer_of(family)
    if row["user"].startswith("refused"):
        return
    assert supports_tool_calling(tokenizer) is row["tools rendered"]
    try:
        assert is_chat_template_prefix_preserving(tokenizer) is row["prefix-preserving"]
    except TemplateError:
        assert row["prefix-preserving"] is None
    try:
        trained = get_training_chat_template(tokenizer)
    except ValueError:
        return  # TRL has no template to train this one with
    if row["user"] == "kept":
        assert is_chat_template_stop_token_trained(tokenizer, trained) is bool(row["turn ends with"])


if __name__ == "__main__":
    table = {family: row_of(family) for family in FAMILIES}
    TABLE.write_text(
        "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(row, ensure_ascii=False)}" for name, row in table.items()) + "\n}\n",
        encoding="utf-8",
    )
