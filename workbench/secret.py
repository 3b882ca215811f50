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
IN_ADDRESS = re.compile(r"//[^/@\s]+@")  # scheme://user:password@host


def secret_variables() -> list[str]:
    """What the environment's tokens, keys and passwords are."""
    return [own for name, own in os.environ.items() if NAMED.search(name) and len(own) >= 8]
