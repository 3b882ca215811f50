"""What others may see: texts without keys, paths and names of this machine, and the name of a base
that they know.
"""

from __future__ import annotations

import contextlib
import getpass
import re
import socket
from pathlib import Path, PureWindowsPath
from typing import Any

from workbench.base.secret import LOOKS, NAMED, is_secret, secret_variables
from workbench.base.workspace import home_folder
from workbench.tiny import named as policies

# Two parts at least: "/no_think" is a word that models know, "</answer>" a tag, "https://…" an
# address.
_PATH = re.compile(
    r"(?<![\w.:/<])~?/[A-Za-z_.~][\w.@+~-]*(?:/[\w.@+~-]+)+/?|(?<!\w)[A-Za-z]:\\[\w.@+~-]+(?:\\[\w.@+~-]+)+\\?"
)


def clean(value: object) -> Any:
    """`value` without keys, absolute paths (their last part stays) and home folder, at any depth.

    The names of user and host are removed from paths and NAME@HOST only: elsewhere they may be
    ordinary words.
    """
    home, host, keys = home_folder(), socket.gethostname().partition(".")[0], secret_variables()
    users = {home.name} - {""}
    with contextlib.suppress(OSError, KeyError):
        users.add(getpass.getuser())
    account = re.compile(
        rf"(?<!\w)(?:{'|'.join(map(re.escape, users))})@[\w.-]+|(?<!\w)[\w.-]+@{re.escape(host)}[\w.-]*"  # noqa: E501
    )

    def last(path: str) -> str:
        name = PureWindowsPath(path).name
        return "user" if name in users else name

    def text(value: str) -> str:
        for key in keys:
            value = value.replace(key, "[removed]")
        value = LOOKS.sub("[removed]", value)
        # The whole text, also one with spaces in it; what begins with a backslash, and no share, is
        # LaTeX.
        whole = (
            re.match(r"/(?!/)|[A-Za-z]:[\\/]|\\\\[\w.-]+\\[\w.$-]+\\", value) and "\n" not in value
        )
        value = last(value) if whole and len(PureWindowsPath(value).parts) > 2 else value
        value = re.sub(rf"(?<!\w){re.escape(str(home))}(?!\w)", "~", value)
        return account.sub("user@host", _PATH.sub(lambda match: last(match[0]), value))

    def cleaned(value: object, name: object = "") -> object:
        if isinstance(value, dict):
            # Names of settings and functions are looked up by others.
            return {
                key if key.isidentifier() else cleaned(key): cleaned(item, key)
                for key, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [cleaned(item) for item in value]
        if not isinstance(value, str):
            return value
        return (
            "[removed]" if is_secret(str(name), value) and NAMED.search(str(name)) else text(value)
        )

    return cleaned(value)


def public_name(base: str | Path) -> str:
    """A base's public name: its hub name, without `-bnb-4bit`; for a folder its own name."""
    text = str(base)
    if hub := re.search(r"models--([^/]+)--([^/]+)[/\\]snapshots", text):
        text = f"{hub[1]}/{hub[2]}"
    elif own := policies.named_at(text):
        text = own.public
    elif (
        Path(text).is_dir()
        or text.startswith(("/", "~", "."))
        or text.count("/") > 1
        or "\\" in text
    ):
        text = PureWindowsPath(text).name
    return clean(re.sub(r"-(unsloth-)?bnb-4bit$", "", text, flags=re.IGNORECASE))
