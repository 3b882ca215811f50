"""What a chat template wraps a tool call in."""

from __future__ import annotations

import os
import re
from typing import Any

from workbench.base.errors import DataError
from workbench.data.rendering import render
from workbench.run.calls import Markers

_TAG = re.compile(r"<[^<>\s]{1,40}>|\[[A-Z_]{2,40}\]")


def markers_of(tokenizer: Any) -> Markers | None:
    """What a tokenizer's chat template wraps a call in; None: it has no call, or no tags around
    it.
    """
    function = {"name": "name_of_the_tool", "arguments": {"argument": "value"}}
    asked = [{"role": "user", "content": "?"}]
    said = {"role": "assistant", "content": ""}
    said["tool_calls"] = [{"type": "function", "function": function}]
    try:
        before = render(asked, tokenizer, add_generation_prompt=True)
        whole = render([*asked, said], tokenizer, add_generation_prompt=False)
    except (DataError, TypeError):  # it refuses calls, or their arguments as an object
        return None
    call = whole[len(os.path.commonprefix([before, whole])) :]  # noqa: RUF071  they are texts
    opened, _, after = call.partition(function["name"])
    tags = list(_TAG.finditer(opened))
    if not after or not tags:
        return None
    tag, closing = tags[-1][0], tags[-1][0].replace("<", "</", 1)
    lines = [line.strip() for line in str(tokenizer.chat_template).splitlines() if tag in line]
    return Markers(
        tag,
        closing if closing in after else "",
        lines[-1][:200] if lines else "",
        "{" in opened[tags[-1].end() :],
    )
