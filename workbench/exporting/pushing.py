"""Push an artefact to the hub, once its proof holds and no file contains secrets or paths of this
machine.
"""

from __future__ import annotations

import re
from pathlib import Path

from workbench.base.errors import ExportError
from workbench.base.secret import KEYS, secret_variables
from workbench.base.workspace import home_folder, shown, workspace
from workbench.exporting import passport
from workbench.exporting.artefacts import Artefact

# What was found is never printed.
_HELD = KEYS | {
    r"(?:/home/|/Users/|[A-Z]:\\{1,2}Users\\{1,2})[\w.-]+": "a path of somebody's machine"
}


def push(artefact: Artefact, repo: str, *, unproven: bool = False) -> str:
    """Upload an artefact with its card to the hub as `repo` (OWNER/NAME), created private if
    missing; returns its address.

    The token is HF_TOKEN, or that of `hf auth login`. `unproven`: push also without a proof that
    holds.

    Raises:
        ExportError: a file was changed, there is no proof or it failed, a file holds a secret or a
            path of this machine, or the hub refuses or cannot be reached (`network` is then True).
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    _check(artefact, unproven)
    try:
        api = HfApi()
        address = api.create_repo(repo, private=True, exist_ok=True)
        api.upload_folder(
            repo_id=address.repo_id, folder_path=artefact.path, commit_message=artefact.format
        )
        return str(address)
    except HFValidationError as error:
        raise ExportError(
            f"repo {repo!r}",
            rule="a repository is OWNER/NAME",
            remedy="letters, digits, '.', '_', '-'",
        ) from error
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else None
        said = error.server_message or str(error).splitlines()[0]
        refused = status in (401, 403)
        raise ExportError(
            f"{repo}: the hub answers {status}: {said}",
            rule="a push needs a token that may write to the owner's repositories",
            remedy="set HF_TOKEN to such a token" if refused else "try again later",
        ) from error
    except Exception as error:  # of the client's HTTP library, of many kinds
        raise ExportError(
            f"{repo}: the hub cannot be reached ({type(error).__name__})",
            rule="an artefact is uploaded over the network",
            remedy="connect to the network, unset HF_HUB_OFFLINE, and push again: what was uploaded"
            " is not sent twice",
            network=True,
        ) from error


def _check(artefact: Artefact, unproven: bool) -> None:
    place = shown(artefact.path)
    if others := passport.changed_files(artefact.path):
        raise ExportError(
            f"{place}: {', '.join(others)}: not as exported",
            rule="what is uploaded is what was exported",
            remedy="export again with overwrite=True",
        )
    proof = passport.read_passport(artefact.path).get("proof") or {}
    if not unproven and not proof.get("passed"):
        raise ExportError(
            f"{place}: {'its proof failed' if proof else 'not proven'}",
            rule="an artefact is uploaded only once it is proven to be what was trained",
            remedy=f"`workbench prove {place}`; unproven=True uploads it all the same",
        )
    for file in sorted(artefact.path.rglob("*")):
        if file.is_file() and (kind := secret_in(file)):
            raise ExportError(
                f"{shown(file)}: {kind}",
                rule="nothing of a machine or an account is uploaded",
                remedy="take it out, and export again",
            )


def secret_in(file: Path) -> str:
    """What kind of secret a text file holds, if any; weights are not read."""
    if file.suffix in (".safetensors", ".gguf", ".model"):
        return ""
    text = file.read_text(encoding="utf-8", errors="replace")
    if any(secret in text for secret in secret_variables()):
        return "the content of a secret variable of the environment"
    for folder in (home_folder(), workspace()):
        # A folder of one part may be a word of the vocabulary: "/root", "/content". What lies in it
        # is none.
        end = r"(?![\w-])" if len(folder.parts) > 2 else r"/\w"
        if len(folder.parts) > 1 and re.search(re.escape(str(folder)) + end, text):
            return "a path of this machine"
    return next((kind for pattern, kind in _HELD.items() if re.search(pattern, text)), "")
