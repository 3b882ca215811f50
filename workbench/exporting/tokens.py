"""Token ids: the artefact's tokenizer and template, compared with those of training."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from typing import Any

from workbench.data.rendering import prompt_text
from workbench.errors import RunError, WorkbenchError
from workbench.exporting.artefacts import Artefact
from workbench.exporting.checks import Check
from workbench.exporting.merging import ended_with
from workbench.exporting.reading import Reader
from workbench.kinds import Tokenizer
from workbench.run.directory import RunDirectory
from workbench.run.rollouts import query
from workbench.training.loading import load_tokenizer
from workbench.training.resuming import begun_task

_AROUND = 40  # characters, or ids, that are shown from where two texts part
_NAMES_EOS = {
    "tokenizer_config.json": "eos_token",
    "generation_config.json": "eos_token_id",
    "config.json": "eos_token_id",
}
_REMEDIES = {
    "template_lost": (
        "put the chat_template.jinja of the policy that was trained beside the weights, and export"
        " again"
    ),
    "double_bos": (
        "only one of template and loader may write BOS: set add_bos_token to false, and export"
        " again"
    ),
    "eos_missing": (
        "name the EOS tokens of training in generation_config.json and tokenizer_config.json, and"
        " export again"
    ),
    "tokenizer_differs": "export again, with the tokenizer's files of the policy that was trained",
}


def check_tokens(artefact: Artefact, reader: Reader, most: int = 1000) -> list[Check]:
    """Ids of `most` rendered held-out prompts, and of as many recorded completions: equal, or the
    first that is not.

    Training prompts fill up where fewer are held out. Where something cannot be loaded, a check
    says why.
    """
    run = artefact.run
    if run is None:
        return [
            _check(
                "ids",
                "the run that it was made from is not at hand, and so neither is its tokenizer",
                None,
            )
        ]
    try:
        tokenizer = load_tokenizer(run.recipe().policy.name, run.recipe().chat_template_kwargs)
    except WorkbenchError as error:
        return [_check("ids", f"the tokenizer of training cannot be loaded: {error.value}", None)]
    checks = [_eos(artefact, reader, tokenizer)]
    for name, compared in (("prompts", _prompts), ("recorded completions", _completions)):
        try:
            checks += compared(run, reader, tokenizer, most)
        except (WorkbenchError, LookupError) as error:
            checks.append(
                _check(
                    f"ids of {name}", f"they cannot be read: {getattr(error, 'value', error)}", None
                )
            )
    return checks


def _eos(artefact: Artefact, reader: Reader, tokenizer: Tokenizer) -> Check:
    assert artefact.run is not None
    ends, wrong = ended_with(artefact.run, tokenizer), []
    # a GGUF file has one above others
    if not {*ends} <= {*reader.ends} or getattr(reader, "eos", None) not in {None, *ends}:
        wrong.append(f"{', '.join(map(str, sorted(reader.ends))) or None} as it is loaded")
    for file, key in _NAMES_EOS.items():
        with contextlib.suppress(OSError, ValueError):  # a GGUF file has none of them
            said = json.loads((artefact.path / file).read_text(encoding="utf-8")).get(key)
            said = said.get("content") if isinstance(said, dict) else said
            ids = {*said} if isinstance(said, list) else {said}
            named = said == tokenizer.eos_token if key == "eos_token" else {*ends} <= ids
            wrong += (
                [] if named or (said is None and file == "config.json") else [f"{said!r} in {file}"]
            )
    words = ", ".join(f"{each} ({tokenizer.convert_ids_to_tokens(each)})" for each in ends)
    found = "; ".join([*wrong, f"training ended completions with {words or None}"])
    return _check("EOS", found, "eos_missing" if wrong else "")


def _prompts(run: RunDirectory, reader: Reader, tokenizer: Tokenizer, most: int) -> list[Check]:
    if run.manifest().get("attached"):
        rule, remedy = "a run of your own trainer has no task of the workbench", "none is needed"
        raise RunError(f"{run.name}: {rule}", rule=rule, remedy=remedy)
    task = begun_task(run, run.recipe())
    rows = [*task.held_out[:most], *task.rows[: max(0, most - len(task.held_out))]]
    prompts, bos = [row["prompt"] for row in rows], tokenizer.bos_token

    def bare(text: str) -> str:
        # how many there are is seen in the ids, whoever added them
        while bos and text.startswith(bos):
            text = text.removeprefix(bos)
        return text

    texts, theirs = (
        [prompt_text(prompt, tokenizer) for prompt in prompts],
        [_rendered(reader, prompt) for prompt in prompts],
    )
    other = [
        at
        for at, own in enumerate(theirs)
        if not isinstance(own, str) or bare(own) != bare(texts[at])
    ]
    found = "equal"
    if other:
        ours, own = bare(texts[other[0]]), theirs[other[0]]
        parted = (
            _parting(ours, bare(own))
            if isinstance(own, str)
            else f"is refused: {getattr(own, 'value', own)}"
        )
        found = f"{len(other)} of {len(texts)} differ; prompt {other[0] + 1} {parted}"
        found = "the chat template is missing" if own is None else found
    checks = [
        _check(f"text of {len(texts):,} rendered prompts", found, "template_lost" if other else "")
    ]
    if not (same := [at for at in range(len(texts)) if at not in {*other}]):
        return checks
    # The template writes special tokens itself; a prompt that is plain text gets those that the
    # tokenizer adds, as in TRL.
    plain, kept = isinstance(prompts[0], str), [texts[at] for at in same]
    return [
        *checks,
        _equal(
            "rendered prompts",
            kept,
            tokenizer,
            plain,
            lambda at: reader.prompt_ids(prompts[same[at]]),
        ),
    ]


def _rendered(reader: Reader, prompt: object) -> str | Exception | None:
    try:
        return reader.render(prompt)
    except Exception as error:  # a template can fail in as many ways as a program
        return error


def _completions(run: RunDirectory, reader: Reader, tokenizer: Tokenizer, most: int) -> list[Check]:
    # In an order that has nothing to do with theirs in the run, and is the same every time.
    asked = (
        "select completion from (select distinct completion from rollouts where completion <> '')"
        " order by hash(completion)"
    )
    texts = query(run.rollouts, f"{asked} limit {int(most)}")["completion"].tolist()
    return [
        _equal("recorded completions", texts, tokenizer, False, lambda at: reader.ids(texts[at]))
    ]


def _equal(
    what: str,
    texts: Sequence[str],
    tokenizer: Tokenizer,
    adds: bool,
    theirs: Callable[[int], list[int]],
) -> Check:
    name, bos = f"ids of {len(texts):,} {what}", tokenizer.bos_token_id
    if not texts:
        return _check(name, "there are none to compare", None)
    pairs = [
        (own, list(theirs(at)))
        for at, own in enumerate(tokenizer(list(texts), add_special_tokens=adds)["input_ids"])
    ]
    apart = [at for at, (own, other) in enumerate(pairs) if own != other]
    if not apart:
        return _check(name, "equal")
    own, other = pairs[apart[0]]
    found = (
        f"{len(apart)} of {len(texts)} differ; {texts[apart[0]][:_AROUND]!r} {_parting(own, other)}"
    )
    if bos is not None and other[:2] == [bos, bos] != own[:2]:
        counts = [
            next((at for at, id_ in enumerate(ids) if id_ != bos), len(ids)) for ids in (other, own)
        ]
        return _check(
            name, f"{found}: {counts[0]} BOS tokens, where training had {counts[1]}", "double_bos"
        )
    return _check(name, found, "tokenizer_differs")


def _parting(ours: Any, theirs: Any) -> str:
    # Where two texts, or lists of ids, part, and what follows in each.
    shorter = min(len(ours), len(theirs))
    at = next((at for at in range(shorter) if ours[at] != theirs[at]), shorter)
    return (
        f"parts at {at}: {ours[at : at + _AROUND]!r} in training, {theirs[at : at + _AROUND]!r}"
        " here"
    )


def _check(name: str, found: str, cause: str | None = "") -> Check:
    # Without a cause it passed; with None it cannot be told.
    return Check(
        "tokens",
        name,
        None if cause is None else not cause,
        found,
        cause or "",
        _REMEDIES.get(cause or "", ""),
    )
