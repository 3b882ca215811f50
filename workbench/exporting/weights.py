"""Tensors: merged - base is s B A within rounding, layer by layer, and every other tensor is the base's.

A step is often smaller than what the 16-bit type can resolve: most weights then round back to the base's, and the rest move by
a whole unit, so merged - base itself says little. What is compared is what comes out of rounding base + k s B A, for each k
that could be, on the weights where that is not what comes out of rounding the base. GGUF rounds once more: so is what it is
compared with, by llama.cpp's own quantiser; and so does merged_4bit, by bitsandbytes'.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from workbench.errors import ExportError, WorkbenchError
from workbench.exporting import gguf, merging
from workbench.exporting.artefacts import Artefact
from workbench.exporting.checks import Check
from workbench.training.loading import quiet_imports, reading

HEAD = "lm_head.weight"
_EMBEDDINGS = re.compile(r"(embed_tokens|wte|embed_in|word_embeddings)\.weight$")
_TELLING = 8  # weights on which two explanations must differ, before one of them is believed
_CLOSE = 0.05  # of the distance between two explanations: what another order of the sums may leave
_DECIDING = (
    "vocab_size", "max_position_embeddings", "rope_parameters", "sliding_window", "rms_norm_eps", "hidden_act", "head_dim",
    "num_attention_heads", "num_key_value_heads", "bos_token_id",
)  # fmt: skip
# llama.cpp's architectures whose tensors are those of transformers, but for the order of rows of q_proj and k_proj in the first.
_KNOWN = ("llama", "qwen2", "qwen3")
_ROWS = 2**21  # weights of a quantised matrix that are looked at: whole rows, spread over it
_REMEDY = "export the run again, with overwrite, beside the very base, and revision, that it was trained on"


def _as_well(own: Any, quantised: Any, wanted: Any) -> bool:
    # Whether it is no further from what it should be than quantising leaves it, with room for another version of the quantiser.
    return bool((own - wanted).norm() <= 3 * (quantised - wanted).norm())


def _few_apart(own: Any, quantised: Any, wanted: Any) -> bool:
    # NF4 takes the nearest of 16 numbers: another version, or a GPU, rounds a few weights otherwise, and no more.
    return bool((own - quantised).norm(1) <= _CLOSE * (quantised - wanted).norm(1))


class _Model:
    """A saved model's tensors by name and its config; the head of a tied one is its embeddings, where it is not stored."""

    as_well = staticmethod(_as_well)

    def __init__(self, source: str | Path) -> None:
        with quiet_imports():
            from transformers import AutoConfig

        self.tensors = merging.tensors_of(source)
        with reading(f"config of {Path(source).name}"):
            self.config = AutoConfig.from_pretrained(str(source), trust_remote_code=False)
        # A 4-bit weight has its scales beside it: they are no tensors of the model.
        self.names = {name for name in self.tensors if ".weight." not in name}
        self.embeddings = next(filter(_EMBEDDINGS.search, sorted(self.names)), "")
        self.tied = bool(self.config.get_text_config().tie_word_embeddings and self.embeddings)
        self.stores_head = HEAD in self.names
        self.names |= {HEAD} if self.tied else set()

    def __getitem__(self, name: str) -> Any:
        return self.tensors[self.embeddings if name == HEAD and not self.stores_head else name]()

    def part(self, name: str, tensor: Any) -> Any:
        """What of a tensor of the base is compared: here all."""
        return tensor

    def held(self, name: str, tensor: Any) -> Any:
        """What a tensor becomes where it is stored under this name."""
        return tensor.to(self[name].dtype)

    def dtype(self, name: str) -> Any:
        """Of the 16 bits that its sum was rounded to."""
        return self[name].dtype

    def coarse(self, name: str) -> bool:
        """Whether a tensor is stored in fewer than 16 bits."""
        return False

    def same(self, name: str, expected: Any) -> bool:
        if (mine := self[name]).shape != expected.shape:
            return False
        once = self.held(name, expected)
        return bool((mine == once).all()) or (self.coarse(name) and self.as_well(mine.float(), once.float(), expected.float()))

    def parameters(self) -> set[str]:
        """What loading wants, by name."""
        import torch
        from transformers import AutoModelForCausalLM

        with reading(f"config of {Path(self.config.name_or_path).name}"), torch.device("meta"):
            return {*AutoModelForCausalLM.from_config(self.config, trust_remote_code=False).state_dict()}


class _FourBits(_Model):
    """A model whose matrices bitsandbytes keeps in NF4: dequantised, and held against what its quantiser makes of the sum."""

    as_well = staticmethod(_few_apart)

    def __getitem__(self, name: str) -> Any:
        return super().__getitem__(name) if (four := merging.dequantised(self.tensors, name)) is None else four

    def held(self, name: str, tensor: Any) -> Any:
        tensor = super().held(name, tensor)
        return merging.in_nf4(tensor) if self.coarse(name) else tensor

    def coarse(self, name: str) -> bool:
        return f"{name}.absmax" in self.tensors


class _Gguf(_Model):
    """A GGUF file's tensors under the names of its base, dequantised, their rows in the base's order."""

    def __init__(self, file: Path, base: _Model, whole: Iterable[str]) -> None:
        import torch

        library = gguf.gguf_py(gguf.check_tools())
        with reading(file.name):
            reader = library.GGUFReader(file)
            kind = reader.get_field("general.architecture").contents()
        self.config = base.config.get_text_config()
        if kind not in _KNOWN or self.config.model_type not in (*_KNOWN, "mistral"):
            rule, remedy = f"known are {', '.join(_KNOWN)}", "trust what is measured instead"
            raise ExportError(f"how llama.cpp stores the tensors of {kind!r} is not known here", rule=rule, remedy=remedy)
        architecture = next(key for key, name in library.MODEL_ARCH_NAMES.items() if name == kind)
        names = library.get_tensor_name_map(architecture, self.config.num_hidden_layers)
        wanted = {name: names.get_name(name, try_suffixes=(".weight", ".bias")) for name in base.names | {*whole, HEAD}}
        self.stored = {tensor.name: tensor for tensor in reader.tensors}
        self.mapped = {name: found for name, found in wanted.items() if found}
        self.names = {name for name, found in self.mapped.items() if found in self.stored}
        self.embeddings, self.stores_head = base.embeddings, HEAD in self.names
        # llama.cpp takes the embeddings for a head that is not stored.
        self.tied, self.permuted = not self.stores_head, kind == "llama"
        self.names |= {HEAD} if self.tied else set()
        self._dequantise, self._kinds = library.quants.dequantize, library.GGMLQuantizationType
        said = self.config.dtype
        self._sixteen = said if said in (torch.float16, torch.bfloat16) else torch.bfloat16

    def _stored(self, name: str) -> Any:
        return self.stored[self.mapped[self.embeddings if name == HEAD and not self.stores_head else name]]

    def coarse(self, name: str) -> bool:
        return self._stored(name).tensor_type not in (self._kinds.F32, self._kinds.F16)

    def __getitem__(self, name: str) -> Any:
        import torch

        stored = self._stored(name)
        mine = torch.from_numpy(self._dequantise(stored.data, stored.tensor_type).copy())
        if self.permuted and (which := re.search(r"\.([qk])_proj\.\w+$", name)):
            heads = self.config.num_attention_heads if which[1] == "q" else self.config.num_key_value_heads
            mine = mine.reshape(heads, -1, 2, *mine.shape[1:]).transpose(1, 2).reshape(mine.shape)
        return self.part(name, mine)

    def part(self, name: str, tensor: Any) -> Any:
        return tensor if tensor.ndim != 2 or not self.coarse(name) else tensor[:: -(-tensor.numel() // _ROWS)]

    def held(self, name: str, tensor: Any) -> Any:
        import torch

        kind, tensor = self._stored(name).tensor_type, tensor.to(self._sixteen)
        if kind == self._kinds.F32:
            return tensor.float()
        tensor = tensor.half().float()
        return tensor if kind == self._kinds.F16 else torch.from_numpy(gguf.rounded(tensor.numpy(), kind))

    def dtype(self, name: str) -> Any:
        return self._sixteen

    def parameters(self) -> set[str]:
        return {*self.mapped}


class _Adapter:
    """An adapter as PEFT saved it: tensors of a model that it adds s B A to, that it replaces, and that it changes otherwise."""

    def __init__(self, folder: Path) -> None:
        with reading(f"adapter {folder.name}"):
            self.config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
            self.tensors = merging.tensors_in([folder / "adapter_model.safetensors"])
            steps = {} if self.config.get("use_dora") else merging.deltas(folder)
        self.added = {f"{layer}.weight": step for layer, step in steps.items()}
        self.whole, otherwise = {}, set()
        for key in self.tensors:
            parts = re.split(r"\.(lora_|token_adapter|base_layer)", key.removeprefix("base_model.model."), maxsplit=1)
            layer, kind, end = [*parts, "", ""][:3]
            if not kind or (kind, end) == ("base_layer", ".bias"):
                self.whole[layer + end] = key
            elif kind != "base_layer" and not (layer in steps and end in ("A.weight", "B.weight")):
                otherwise.add(f"{layer}.")  # DoRA's magnitudes, LoRA of embeddings, of a bias or of stacked experts
        self.otherwise = tuple(sorted(otherwise))


def check_weights(artefact: Artefact) -> list[Check]:
    """Hold an artefact's tensors against the base's and the run's adapter. No forward pass, no GPU, one tensor at a time."""
    if artefact.run is None:
        return [_untold("the run that it was made of is not at hand, and so neither is its adapter")]
    own, in_gguf = None, artefact.format.startswith("gguf")
    try:
        if not in_gguf:
            own = {"adapter": _Adapter, "merged_4bit": _FourBits}.get(artefact.format, _Model)(artefact.path)
    except WorkbenchError as error:
        return [_judged("its files", error.value, "unreadable")]
    try:
        adapter = _Adapter(artefact.run.adapter)
        if isinstance(own, _Adapter):
            return _same_adapter(own, adapter)
        held = merging.four_bit(artefact.run) if artefact.into == "dequantised" else lambda layer, weight: None
        base = _Model(merging.base_of(artefact.run))
        with reading(artefact.gguf.name) if in_gguf else contextlib.nullcontext():  # another llama.cpp than ours may refuse
            return _merged(own or _Gguf(artefact.gguf, base, adapter.whole), base, adapter, held)
    except WorkbenchError as error:
        return [_untold(f"what it is held against cannot be read: {error.value}")]


def _same_adapter(own: _Adapter, adapter: _Adapter) -> list[Check]:
    import torch

    def changes(one: _Adapter) -> bool:
        return any(tensor().any() for name, tensor in one.tensors.items() if not re.search(r"lora_(embedding_)?A", name))

    if not changes(own) and changes(adapter):  # a run that learnt nothing has such an adapter itself
        return [_judged("its tensors", "every B is zero: the adapter changes nothing", "equals_base")]
    mine, theirs = own.tensors, adapter.tensors
    either, both = mine.keys() | theirs, mine.keys() & theirs
    other = [name for name in sorted(either) if name not in both or not torch.equal(mine[name](), theirs[name]())]
    found = f"{len(other)} of {len(either)} are not the run's{_some(other)}" if other else f"all {len(either)} are the run's"
    changed = _changed(own.config, adapter.config, sorted({*own.config, *adapter.config} - {"base_model_name_or_path"}))
    return [
        _judged("its tensors", found, "other_adapter" * bool(other)),
        _judged("its settings", changed or "all are the run's", "other_adapter" * bool(changed)),
    ]


def _merged(own: _Model, base: _Model, adapter: _Adapter, held: merging.FourBit) -> list[Check]:
    def before(name: str) -> Any:
        stored = base[name]
        four = held(name.removesuffix(".weight"), stored)
        return own.part(name, stored if four is None else four)

    def step(name: str) -> Any:
        found = adapter.added[name]()
        return own.part(name, found.T if adapter.config.get("fan_in_fan_out") else found)

    def added(name: str) -> float | None:
        found = times(own[name], before(name), step(name), own.dtype(name), functools.partial(own.held, name), own.as_well)
        # Not merged is not merged, also where the sum was to be made with the dequantised weight.
        return 0.0 if found not in (1, None) and _exactly(own[name], own.held(name, own.part(name, base[name]))) else found

    def lost(name: str) -> Any:  # where it is stored, of what should be there
        wanted = before(name) + step(name) if own.coarse(name) and name in adapter.added else before(name)
        return own.held(name, wanted).float() - wanted.float()

    def right(name: str) -> bool:
        if name in adapter.added:
            return added(name) in (1, None)
        return own.same(name, own.part(name, adapter.tensors[adapter.whole[name]]()) if name in adapter.whole else before(name))

    steps, whole, checks = adapter.added.keys() & base.names, adapter.whole.keys(), []
    # Whether training gave a tied head and its embeddings different values; a merge that ties them again loses one of them.
    untied = base.tied and bool({HEAD, base.embeddings} & (steps | whole)) and not adapter.config.get("ensure_weight_tying")
    apart = {HEAD} if base.tied or own.tied or HEAD not in own.names else set()
    apart |= {base.embeddings} if untied else set()
    names = {name for name in (base.names | whole) - apart if not name.startswith(adapter.otherwise)}
    if differs := (names - own.names) | (extra := own.names - base.names - whole):
        known = own.parameters()  # a model stores more than it loads: buffers of old versions, parts for other tasks
        if gone := [(name, "module_lost") for name in differs & known] + [(name, "wrong_base") for name in extra - known]:
            found = f"{len(gone)} missing, and made up in loading, or not in the base{_some(name for name, _ in gone)}"
            checks.append(_judged("names of its tensors", found, gone[0][1]))
    if apart and HEAD in base.names:
        checks.append(_head(own, base, untied, right))
    names &= own.names
    layers = {name: added(name) for name in sorted(names & steps)}
    other = [name for name in sorted(names - steps) if not right(name)]
    odd = [*(name for name, k in layers.items() if math.isnan(k or 0)), *(name for name in other if name not in whole)]
    ranks = [_low_rank(own[name], before(name), lost(name), adapter.config["r"]) for name in odd]
    # Another adapter leaves a difference of a low rank, and only in layers that can be adapted; another base one of every rank.
    foreign = "wrong_base" if False in ranks or (other and None in ranks) else "other_adapter"
    if layers:
        checks.append(_layers(layers, foreign))
    for whose, of, cause in (("base's", names - steps - whole, foreign), ("adapter's", names & whole, "module_lost")):
        differ = [name for name in other if name in of]
        found = f"{len(differ)} of {len(of)} differ{_some(differ)}" if differ else f"all {len(of)} are the {whose}"
        checks += [_judged(f"other tensors, the {whose}", found, cause * bool(differ))] if of else []
    if unseen := [*adapter.otherwise, *sorted(adapter.added.keys() - steps)]:
        checks = [check for check in checks if check.cause not in ("wrong_base", "other_adapter")]
        checks.append(_untold(f"it does more than add s B A to layers that the base stores under their names{_some(unseen)}"))
    if isinstance(own, _Gguf):
        return checks
    changed = _changed(*(each.config.get_text_config().to_dict() for each in (own, base)), _DECIDING)
    return [*checks, _judged("config.json", changed or "decides what the base's does", "wrong_base" * bool(changed))]


def _head(own: _Model, base: _Model, untied: bool, right: Callable[[str], bool]) -> Check:
    if HEAD not in own.names:
        lost = "it is not stored, and the config does not tie it to the embeddings: loading makes one up"
    elif base.tied and not untied:
        lost = "" if own.same(HEAD, own[own.embeddings]) else "it differs from the embeddings, to which the base ties it"
    else:
        wrong = [name for name in (HEAD, *[base.embeddings] * untied) if not right(name)]
        lost = f"{' and '.join(wrong)}: not as trained{', but tied' * (not own.stores_head)}" if wrong else ""
    return _judged("output head", lost or ("tied to the embeddings" if own.tied else "as trained"), "tied_head_lost" * bool(lost))


def _layers(layers: dict[str, float | None], foreign: str) -> Check:
    # One verdict on how many times s B A was added to each.
    what = f"merged - base = the adapter's change (s B A) in {len(layers)} layers"
    told = {name: k for name, k in layers.items() if k is not None}
    small = f"; in {len(layers) - len(told)} it is lost in rounding" * (len(told) < len(layers))
    wrong = {name: k for name, k in told.items() if k != 1}
    if not wrong:
        found = f"once in {len(told)}{small}" if told else "it is lost in rounding in all of them"
        return Check("weights", what, True if told else None, found, numbers={"times": layers})
    listed = [f"{_place(name)}: " + ("something else" if math.isnan(k) else f"{k:.3g} times") for name, k in wrong.items()]
    found, counts = f"not added once in {len(wrong)} of {len(told)}{_some(listed)}{small}", [*wrong.values()]
    cause = foreign if any(map(math.isnan, counts)) else "layer_skipped"
    if cause == "layer_skipped" and len(wrong) == len(told) and max(counts) - min(counts) <= _CLOSE * max(counts):
        cause = "not_merged" if counts[0] == 0 else "merged_twice" if counts[0] == round(counts[0]) else "other_adapter"
        found = f"added {counts[0]:.2g} times in all {len(told)}{small}"
    return _judged(what, found, cause, times=layers)


def times(
    merged: Any, base: Any, step: Any, dtype: Any = None, held: Callable[[Any], Any] | None = None, as_well: Any = _as_well
) -> float | None:
    """How many times `step` (32 bits) was added to `base` before the sum was rounded to `dtype`, by default that of `merged`.

    `held`: what became of the rounded sum where it was stored, if more did; `as_well`: whether another version of it may have.
    None: the step is too small for that type to tell. NaN: no number explains what is there. One that is not whole is a fit.
    """
    import torch

    if not merged.shape == base.shape == step.shape:
        return math.nan
    dtype, store = dtype or merged.dtype, held or (lambda tensor: tensor)
    never, base, kind = store(base.to(dtype)), base.float(), torch.finfo(dtype)

    def after(k: float) -> Any:
        return (base + k * step).to(dtype)

    once = store(after(1))
    telling = int((once != never).sum()) >= _TELLING
    if torch.equal(merged, once):
        return 1.0 if telling else None
    own, most, coarse = merged.float(), float(step.abs().max()), not _exactly(once, after(1), 2**-24)

    def fits(expected: Any, k: float) -> tuple[bool, float, int]:
        # (each weight is within one unit of its type, and what sums in 32 bits leave; the distance, in all; how many differ).
        apart = (own - expected.float()).abs()
        room = (
            kind.eps * (expected.float().abs() + kind.smallest_normal)
            + 2**-18 * (base.abs() + abs(k) * most)
            + 2**-24 * bool(held)
        )
        return coarse or bool((apart <= room).all()), float(apart.sum(dtype=torch.float64)), int((apart > 0).sum())

    near, left, differ = fits(once, 1)
    if near and telling and left <= _CLOSE * float((once.float() - never.float()).abs().sum(dtype=torch.float64)):
        return 1.0
    if near and differ < _TELLING:
        return None

    def explanations() -> Iterator[tuple[int, Any]]:
        yield 0, never
        again = after(1)
        for k in (2, 3, 4):
            again = (again.float() + step).to(dtype)  # rounded each time
            yield k, store(again)
            yield k, store(after(k))

    for k, expected in explanations():
        near, apart, _ = fits(expected, k)
        if near and apart <= _CLOSE * left:
            return float(k)
    if coarse and as_well(own, once.float(), after(1).float()):  # by another version of the quantiser
        moved, off = after(1).double() - after(0).double(), own.double() - after(1).double()
        square = float(moved.square().sum())
        error = float((off * moved).square().sum().sqrt()) / square if square else math.inf
        if not 6 * error < 0.5:
            return None
        return 1.0 if abs(float((off * moved).sum()) / square) < 0.5 else math.nan
    square = float(step.square().sum(dtype=torch.float64))
    fit = float(((own - base) * step).sum(dtype=torch.float64)) / square if square else 0.0
    return fit if fits(store(after(fit)), fit)[1] <= _CLOSE * left else math.nan


def _low_rank(merged: Any, base: Any, lost: Any, rank: int) -> bool | None:
    # Whether the difference has the rank of an adapter, seen in a corner; None where it is too small, or the rank too high.
    import torch

    if merged.shape != base.shape or merged.ndim != 2:
        return False
    merged, base, lost = (each[:256, :256].float() for each in (merged, base, lost))
    strengths = torch.linalg.svdvals(torch.nan_to_num(merged - base)).double() ** 2
    rounding = (2**-8 * merged).square().sum() / 3 + lost.square().sum()  # at most, of bfloat16; and beyond
    if len(strengths) < 4 * rank or strengths.sum() < 10 * rounding:
        return None
    return bool(strengths[2 * rank :].sum() < 4 * rounding)


def _exactly(mine: Any, expected: Any, room: float = 0) -> bool:
    return mine.shape == expected.shape and bool(((mine.float() - expected.float()).abs() <= room).all())


def _changed(own: dict[str, Any], other: dict[str, Any], names: Iterable[str]) -> str:
    both = [(name, own.get(name) or None, other.get(name) or None) for name in names]
    return "; ".join(f"{name} = {mine!r}, not {others!r}" for name, mine, others in both if mine != others)


def _place(name: str) -> str:
    # `layer 7, down_proj` for `model.layers.7.mlp.down_proj.weight`.
    name = re.sub(r"\.(lora_.*|weight)?$", "", name).replace(".bias", " bias")
    found = re.search(r"\.(\d+)\.(?:.+\.)?([\w ]+)$", name)
    return f"layer {found[1]}, {found[2]}" if found else name


def _some(names: Iterable[str]) -> str:
    listed = [*dict.fromkeys(map(_place, names))]
    return ": " + "; ".join(listed[:3]) + f"; and {len(listed) - 3} more" * (len(listed) > 3) if listed else ""


def _untold(why: str) -> Check:
    return Check("weights", "its tensors", None, why)


def _judged(name: str, found: str, cause: str = "", **numbers: Any) -> Check:
    return Check("weights", name, not cause, found, cause, _REMEDY if cause else "", numbers)
