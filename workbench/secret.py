"""Keys and passwords, which no file may hold: told by how they look, or by the name of a variable or setting that holds one."""

from __future__ import annotations

import os
import re

# How one looks -> what it is called.
KEYS = {
    r"\bhf_\w{16,}": "a token of the hub",
    r"\b(?:gh[oprsu]_|github_pat_)\w{16,}|\bglpat-[\w-]{16,}": "a token of GitHub or GitLab",
    r"\b(?:sk|pk|rk)-[\w-]{16,}|\bwandb_v\d_\w{16,}": "an API key",
    r"\bAKIA[0-9A-Z]{12,}": "an AWS key",
    r"-----BEGIN [A-Z ]*PRIVATE KEY": "a private key",
}
LOOKS = re.compile("|".join([*KEYS, r"\b[0-9a-f]{40}\b"]))  # the last: of Weights & Biases, or a commit
NAMED = re.compile(r"(token|api_?key|_key|secret|passw\w*|passphrase|_auth|credentials?|_pat)$", re.IGNORECASE)
# Of a variable, whose name has words: anywhere in it. What is a number or a word is none, whatever it is called.
_WORDS = (
    r"(?:^|_)(?:(?:ACCESS|API)?KEYS?|TOKENS?|SECRETS?|PASS\w*|PWD|AUTH\w*|CREDENTIALS?|CREDS|PAT|COOKIES?|WEBHOOKS?|PROXY)(?:_|$)"
)
_VARIABLE = re.compile(_WORDS, re.IGNORECASE)
_PLAIN = re.compile(r"[+-]?\d{1,9}(\.\d*)?|true|false|yes|no|on|off", re.IGNORECASE)
_SHOWN = re.compile(r"(?!.*\beyJ)[\w .,:;+-]{0,200}")  # no path, address or assignment; nor a JWT


def may_be_shown(name: str, value: str) -> bool:
    """Whether a variable of the environment holds neither a secret nor a place, as far as its name and its looks tell."""
    plain = _PLAIN.fullmatch(value) and not NAMED.search(name)
    return bool(plain or (_SHOWN.fullmatch(value) and not (_VARIABLE.search(name) or NAMED.search(name) or LOOKS.search(value))))


def secret_variables() -> list[str]:
    """What the environment's tokens, keys and passwords are."""
    return [own for name, own in os.environ.items() if NAMED.search(name) and len(own) >= 8]
