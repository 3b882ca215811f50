"""Keys and passwords, which no file may hold: recognised by their form, or by the name of their
variable or setting.
"""

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
# the last: of Weights & Biases, or a commit
LOOKS = re.compile("|".join([*KEYS, r"\b[0-9a-f]{40}\b"]))
NAMED = re.compile(
    r"(token|api_?key|_key|secret|passw\w*|passphrase|_auth|credentials?|_pat)$", re.IGNORECASE
)
# What is a number or a word is none, whatever its name.
_PLAIN = re.compile(r"[+-]?\d{1,4}(\.\d*)?|true|false|yes|no|on|off|auto|none|", re.IGNORECASE)
# Variables whose values are words or sizes that decide how is computed. Of any other only a flag or
# a small number is shown.
_KNOWN = re.compile(
    r"(PYTORCH_|PYTORCH_CUDA_|PYTORCH_HIP_)ALLOC_CONF|CUBLAS(LT)?_WORKSPACE_(CONFIG|SIZE)|PYTORCH_NVML_BASED_CUDA_CHECK"
    r"|VLLM_(ATTENTION_BACKEND|LOGGING_LEVEL|MAX_NUM_BATCHED_TOKENS|USE_\w+|WORKER_MULTIPROC_METHOD|GPU_MEMORY_UTILIZATION)"
    r"|UNSLOTH_(FORCE_CUSTOM_DTYPE|MIXED_PRECISION|COMPILE_\w+|(GDN|MOE|FSDP2)_BACKEND|EXPERTS_IMPLEMENTATION|PADDING_CHOICE"
    r"|MOE_LORA_B_LAYOUT|GRPO_\w+|VLLM_MAMBA_SSM_CACHE_DTYPE|TOKEN_BUDGET|DEVICE_MAP|LOGGING_LEVEL)"
)
_SHOWN = re.compile(r"(?!.*\beyJ)[\w .,:;+-]{0,200}")  # no path, address or assignment; nor a JWT


def may_be_shown(name: str, value: str) -> bool:
    """Whether an environment variable decides how to compute, or is a flag, and is neither a secret
    nor a path.
    """
    if _PLAIN.fullmatch(value):
        return not NAMED.search(name)
    return bool(
        _KNOWN.fullmatch(name)
        and _SHOWN.fullmatch(value)
        and not (NAMED.search(name) or LOOKS.search(value))
    )


def is_secret(name: str, value: object) -> bool:
    """Whether a setting holds a key or a password: by its name, unless it is a tag such as an EOS
    token; or by its form.
    """
    named = NAMED.search(name) and len(str(value)) >= 8 and "<" not in str(value)
    return isinstance(value, str) and bool(named or re.search("|".join(KEYS), value))


def setting(name: str, value: object) -> str:
    """`name = value`, for messages; for a secret only that it is set."""
    return (
        f"{name} ="
        f" {'(set, not shown)' if is_secret(name.rpartition('.')[2], value) else repr(value)}"
    )


def secret_variables() -> list[str]:
    """The values of the environment's tokens, keys and passwords."""
    return [own for name, own in os.environ.items() if NAMED.search(name) and len(own) >= 8]
