"""Tensors: each adapted layer must equal the merge's own sum, and every other tensor must be the
base's.

A step is often smaller than what the 16-bit type can resolve: most weights then round back to the
base's, and the rest move by a whole unit, so merged - base itself says little. So the artefact is
compared with the rounded base + s B A. GGUF rounds once more, so the reference is rounded also, by
llama.cpp's own quantiser; for merged_4bit, by bitsandbytes'. What the tensors cannot tell, the
artefact's output decides.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from workbench.errors import ExportError, WorkbenchError
from workbench.exporting import gguf, merging
from workbench.exporting.artefacts import Artefact
from workbench.exporting.checks import Check
from workbench.kinds import Fields, Tensor
from workbench.training.loading import quiet_imports, reading

HEAD = "lm_head.weight"
_EMBEDDINGS = re.compile(r"(embed_tokens|wte|embed_in|word_embeddings)\.weight$")
# How an adapter's change is in a layer.
ONCE, NEVER, TWICE = "once", "0 times", "2 times"
LOST, OTHER = "lost in rounding", "something else"
_TELLING = 8  # weights that a step must move, before it is believed to be there or not
_CLOSE = 0.05  # of the distance that a step moves a layer: what another order of the sums may leave
_DECIDING = (
    "vocab_size", "max_position_embeddings", "rope_parameters", "sliding_window", "rms_norm_eps",
    "hidden_act", "head_dim",
    "num_attention_heads", "num_key_value_heads", "bos_token_id",
)  # fmt: skip
# llama.cpp's architectures whose tensors are those of transformers, but for the order of rows of
# q_proj and k_proj in the first.
_KNOWN = ("llama", "qwen2", "qwen3")
_ROWS = 2**21  # weights of a quantised matrix that are looked at: whole rows, spread over it
_REMEDY = (
    "export the run again, with overwrite, beside the exact base and revision that it was"
    " trained on"
)


def _as_well(stored: Tensor, quantised: Tensor, wanted: Tensor) -> bool:
    # True if the error is within the quantiser's own, with room for another version of it.
    return bool((stored - wanted).norm() <= 3 * (quantised - wanted).norm())


def few_apart(stored: Tensor, quantised: Tensor, wanted: Tensor) -> bool:
    """True if at most a few weights are quantised differently.

    NF4 takes the nearest of 16 numbers: another version, or a GPU, rounds only a few weights
    differently.
    """
    return bool((stored - quantised).norm(1) <= _CLOSE * (quantised - wanted).norm(1))


class _Model:
    """A saved model's tensors by name and its config; the head of a tied one is its embeddings,
    where it is not stored.
    """

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

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[self.embeddings if name == HEAD and not self.stores_head else name]()

    def part(self, name: str, tensor: Tensor) -> Tensor:
        """The part of a base tensor to compare: here all."""
        return tensor

    def held(self, name: str, tensor: Tensor) -> Tensor:
        """What a tensor becomes where it is stored under this name."""
        return tensor.to(self[name].dtype)

    def dtype(self, name: str) -> Any:
        """Of the 16 bits that its sum was rounded to."""
        return self[name].dtype

    def coarse(self, name: str) -> bool:
        """Whether a tensor is stored in fewer than 16 bits."""
        return False

    def same(self, name: str, expected: Tensor) -> bool:
        if (mine := self[name]).shape != expected.shape:
            return False
        once = self.held(name, expected)
        return bool((mine == once).all()) or (
            self.coarse(name) and self.as_well(mine.float(), once.float(), expected.float())
        )

    def parameters(self) -> set[str]:
        """What loading wants, by name."""
        import torch
        from transformers import AutoModelForCausalLM

        with reading(f"config of {Path(self.config.name_or_path).name}"), torch.device("meta"):
            return {
                *AutoModelForCausalLM.from_config(self.config, trust_remote_code=False).state_dict()
            }


class _FourBits(_Model):
    """A model whose matrices bitsandbytes keeps in NF4: dequantised, and compared with its
    quantiser's result for the sum.
    """

    as_well = staticmethod(few_apart)

    def __getitem__(self, name: str) -> Tensor:
        return (
            super().__getitem__(name)
            if (four := merging.dequantised(self.tensors, name)) is None
            else four
        )

    def held(self, name: str, tensor: Tensor) -> Tensor:
        tensor = super().held(name, tensor)
        return merging.in_nf4(tensor) if self.coarse(name) else tensor

    def coarse(self, name: str) -> bool:
        return f"{name}.absmax" in self.tensors


class _Gguf(_Model):
    """A GGUF file's tensors under the names of its base, dequantised, their rows in the base's
    order.
    """

    def __init__(self, file: Path, base: _Model, whole: Iterable[str]) -> None:
        import torch

        library = gguf.gguf_py(gguf.check_tools())
        with reading(file.name):
            reader = library.GGUFReader(file)
            kind = reader.get_field("general.architecture").contents()
        self.config = base.config.get_text_config()
        if kind not in _KNOWN or self.config.model_type not in (*_KNOWN, "mistral"):
            rule, remedy = f"known are {', '.join(_KNOWN)}", "trust what is measured instead"
            raise ExportError(
                f"how llama.cpp stores the tensors of {kind!r} is not known here",
                rule=rule,
                remedy=remedy,
            )
        architecture = next(key for key, name in library.MODEL_ARCH_NAMES.items() if name == kind)
        names = library.get_tensor_name_map(architecture, self.config.num_hidden_layers)
        wanted = {
            name: names.get_name(name, try_suffixes=(".weight", ".bias"))
            for name in base.names | {*whole, HEAD}
        }
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
        return self.stored[
            self.mapped[self.embeddings if name == HEAD and not self.stores_head else name]
        ]

    def coarse(self, name: str) -> bool:
        return self._stored(name).tensor_type not in (self._kinds.F32, self._kinds.F16)

    def __getitem__(self, name: str) -> Tensor:
        import torch

        stored = self._stored(name)
        mine = torch.from_numpy(self._dequantise(stored.data, stored.tensor_type).copy())
        if self.permuted and (which := re.search(r"\.([qk])_proj\.\w+$", name)):
            heads = (
                self.config.num_attention_heads
                if which[1] == "q"
                else self.config.num_key_value_heads
            )
            mine = mine.reshape(heads, -1, 2, *mine.shape[1:]).transpose(1, 2).reshape(mine.shape)
        return self.part(name, mine)

    def part(self, name: str, tensor: Tensor) -> Tensor:
        return (
            tensor
            if tensor.ndim != 2 or not self.coarse(name)
            else tensor[:: -(-tensor.numel() // _ROWS)]
        )

    def held(self, name: str, tensor: Tensor) -> Tensor:
        import torch

        kind, tensor = self._stored(name).tensor_type, tensor.to(self._sixteen)
        if kind == self._kinds.F32:
            return tensor.float()
        tensor = tensor.half().float()
        return (
            tensor
            if kind == self._kinds.F16
            else torch.from_numpy(gguf.rounded(tensor.numpy(), kind))
        )

    def dtype(self, name: str) -> Any:
        return self._sixteen

    def parameters(self) -> set[str]:
        return {*self.mapped}


class _Adapter:
    """An adapter as PEFT saved it: tensors of a model that it adds s B A to, that it replaces, and
    that it changes otherwise.
    """

    def __init__(self, folder: Path) -> None:
        with reading(f"adapter {folder.name}"):
            self.config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
            self.tensors = merging.tensors_in([folder / "adapter_model.safetensors"])
            steps = {} if self.config.get("use_dora") else merging.deltas(folder)
        self.added = {f"{layer}.weight": step for layer, step in steps.items()}
        self.whole, otherwise = {}, set()
        for key in self.tensors:
            parts = re.split(
                r"\.(lora_|token_adapter|base_layer)",
                key.removeprefix("base_model.model."),
                maxsplit=1,
            )
            layer, kind, end = [*parts, "", ""][:3]
            if not kind or (kind, end) == ("base_layer", ".bias"):
                self.whole[layer + end] = key
            elif kind != "base_layer" and not (layer in steps and end in ("A.weight", "B.weight")):
                # DoRA's magnitudes, LoRA of embeddings, of a bias or of stacked experts
                otherwise.add(f"{layer}.")
        self.otherwise = tuple(sorted(otherwise))


def check_weights(artefact: Artefact) -> list[Check]:
    """Compare an artefact's tensors with the base's and the run's adapter. No forward pass, no GPU,
    one tensor at a time.
    """
    if artefact.run is None:
        return [
            _untold("the run that it was made from is not at hand, and so neither is its adapter")
        ]
    own, in_gguf = None, artefact.format.startswith("gguf")
    try:
        if not in_gguf:
            own = {"adapter": _Adapter, "merged_4bit": _FourBits}.get(artefact.format, _Model)(
                artefact.path
            )
    except WorkbenchError as error:
        return [_judged("its files", error.value, "unreadable")]
    try:
        adapter = _Adapter(artefact.run.adapter)
        if isinstance(own, _Adapter):
            return _same_adapter(own, adapter)
        held = (
            merging.four_bit(artefact.run)
            if artefact.into == "dequantised"
            else lambda layer, weight: None
        )
        base = _Model(merging.base_of(artefact.run))
        # another llama.cpp than ours may refuse
        with reading(artefact.gguf.name) if in_gguf else contextlib.nullcontext():
            return _merged(own or _Gguf(artefact.gguf, base, adapter.whole), base, adapter, held)
    except WorkbenchError as error:
        return [_untold(f"what it is compared with cannot be read: {error.value}")]


def _same_adapter(own: _Adapter, adapter: _Adapter) -> list[Check]:
    import torch

    def changes(one: _Adapter) -> bool:
        return any(
            tensor().any()
            for name, tensor in one.tensors.items()
            if not re.search(r"lora_(embedding_)?A", name)
        )

    # a run that learnt nothing has such an adapter itself
    if not changes(own) and changes(adapter):
        return [
            _judged("its tensors", "every B is zero: the adapter changes nothing", "equals_base")
        ]
    mine, theirs = own.tensors, adapter.tensors
    either, both = mine.keys() | theirs, mine.keys() & theirs
    other = [
        name
        for name in sorted(either)
        if name not in both or not torch.equal(mine[name](), theirs[name]())
    ]
    found = (
        f"{len(other)} of {len(either)} are not the run's{_some(other)}"
        if other
        else f"all {len(either)} are the run's"
    )
    changed = _changed(
        own.config,
        adapter.config,
        sorted({*own.config, *adapter.config} - {"base_model_name_or_path"}),
    )
    return [
        _judged("its tensors", found, "other_adapter" if other else ""),
        _judged("its settings", changed or "all are the run's", "other_adapter" if changed else ""),
    ]


def _merged(own: _Model, base: _Model, adapter: _Adapter, held: merging.FourBit) -> list[Check]:
    def before(name: str) -> Any:
        stored = base[name]
        four = held(name.removesuffix(".weight"), stored)
        return own.part(name, stored if four is None else four)

    @functools.cache
    def how(name: str) -> str:
        step = adapter.added[name]()
        step = own.part(name, step.T if adapter.config.get("fan_in_fan_out") else step)
        stored = own[name]
        store = functools.partial(own.held, name)
        seen = added(stored, before(name), step, own.dtype(name), store, own.as_well)
        if seen in (ONCE, LOST):
            return seen
        # Not merged is not merged, also where the sum was to be made with the dequantised weight.
        return NEVER if _equal(stored, store(own.part(name, base[name]))) else seen

    def right(name: str) -> bool:
        if name in adapter.added:
            return how(name) in (ONCE, LOST)
        return own.same(
            name,
            (
                own.part(name, adapter.tensors[adapter.whole[name]]())
                if name in adapter.whole
                else before(name)
            ),
        )

    steps, whole, checks = adapter.added.keys() & base.names, adapter.whole.keys(), []
    # Whether training gave a tied head and its embeddings different values; a merge that ties them
    # again loses one of them.
    untied = (
        base.tied
        and bool({HEAD, base.embeddings} & (steps | whole))
        and not adapter.config.get("ensure_weight_tying")
    )
    apart = {HEAD} if base.tied or own.tied or HEAD not in own.names else set()
    apart |= {base.embeddings} if untied else set()
    names = {
        name for name in (base.names | whole) - apart if not name.startswith(adapter.otherwise)
    }
    if differs := (names - own.names) | (extra := own.names - base.names - whole):
        # a model stores more than it loads: buffers of old versions, parts for other tasks
        known = own.parameters()
        if gone := [(name, "module_lost") for name in differs & known] + [
            (name, "wrong_base") for name in extra - known
        ]:
            found = (
                f"{len(gone)} missing, and invented in loading, or not in the"
                f" base{_some(name for name, _ in gone)}"
            )
            checks.append(_judged("names of its tensors", found, gone[0][1]))
    if apart and HEAD in base.names:
        checks.append(_head(own, base, untied, right))
    names &= own.names
    bases = names - steps - whole
    other = [name for name in sorted(names - steps) if not right(name)]
    # Another adapter, or this one at another scale, changes no other tensor; another base does.
    foreign = "wrong_base" if bases & {*other} else "other_adapter"
    if layers := {name: how(name) for name in sorted(names & steps)}:
        checks.append(_layers(layers, foreign))
    for whose, of, cause in (
        ("base's", bases, "wrong_base"),
        ("adapter's", names & whole, "module_lost"),
    ):
        differ = [name for name in other if name in of]
        found = (
            f"{len(differ)} of {len(of)} differ{_some(differ)}"
            if differ
            else f"all {len(of)} are the {whose}"
        )
        checks += (
            [_judged(f"other tensors, the {whose}", found, cause if differ else "")] if of else []
        )
    if unseen := [*adapter.otherwise, *sorted(adapter.added.keys() - steps)]:
        checks = [check for check in checks if check.cause not in ("wrong_base", "other_adapter")]
        checks.append(
            _untold(
                "it does more than add s B A to layers that the base stores under their"
                f" names{_some(unseen)}"
            )
        )
    if isinstance(own, _Gguf):
        return checks
    changed = _changed(
        *(each.config.get_text_config().to_dict() for each in (own, base)), _DECIDING
    )
    return [
        *checks,
        _judged(
            "config.json",
            changed or "decides what the base's does",
            "wrong_base" if changed else "",
        ),
    ]


def _head(own: _Model, base: _Model, untied: bool, right: Callable[[str], bool]) -> Check:
    if HEAD not in own.names:
        lost = (
            "it is not stored, and the config does not tie it to the embeddings: loading"
            " invents one"
        )
    elif base.tied and not untied:
        lost = (
            ""
            if own.same(HEAD, own[own.embeddings])
            else "it differs from the embeddings, to which the base ties it"
        )
    else:
        wrong = [name for name in (HEAD, *[base.embeddings] * untied) if not right(name)]
        lost = (
            f"{' and '.join(wrong)}: not as trained{', but tied' * (not own.stores_head)}"
            if wrong
            else ""
        )
    good = "tied to the embeddings" if own.tied else "as trained"
    return _judged("output head", lost or good, "tied_head_lost" if lost else "")


def _layers(layers: dict[str, str], foreign: str) -> Check:
    # One verdict on how s B A was added to each.
    what = f"merged - base = the adapter's change (s B A) in {len(layers)} layers"
    told = {name: how for name, how in layers.items() if how != LOST}
    small = (
        f"; in {len(layers) - len(told)} it is lost in rounding" if len(told) < len(layers) else ""
    )
    wrong = {name: how for name, how in told.items() if how != ONCE}
    if not told:
        return Check(
            "weights",
            what,
            None,
            "it is lost in rounding in all of them",
            numbers={"added": layers},
            rounding=True,
        )
    if not wrong:
        return _judged(what, f"once in {len(told)}{small}", added=layers)
    kinds = {*told.values()}
    if len(kinds) == 1 and OTHER not in kinds:
        cause = "not_merged" if NEVER in kinds else "merged_twice"
        return _judged(what, f"added {kinds.pop()} in all {len(told)}{small}", cause, added=layers)
    listed = _some(f"{_place(name)}: {how}" for name, how in wrong.items())
    cause = foreign if OTHER in kinds else "layer_skipped"
    return _judged(
        what, f"not added once in {len(wrong)} of {len(told)}{listed}{small}", cause, added=layers
    )


def added(
    stored: Any,
    base: Any,
    step: Any,
    dtype: Any = None,
    store: Callable[[Any], Any] | None = None,
    as_well: Any = _as_well,
) -> str:
    """How `step` (32 bits) was added to `base` before the sum was rounded to `dtype`, by default
    that of `stored`.

    `store`: what became of the rounded sum where it was stored, if more did; `as_well`: whether
    another version of that may have made this. LOST: the step is too small for that type to tell.
    OTHER: nothing known explains what is there.
    """
    import torch

    if not stored.shape == base.shape == step.shape:
        return OTHER
    dtype, store, own, base = (
        dtype or stored.dtype,
        store or (lambda tensor: tensor),
        stored.float(),
        base.float(),
    )
    total = (base + step).to(dtype)
    never, once = store(base.to(dtype)).float(), store(total).float()
    coarse = not _equal(once, total, 2**-24)
    moved = float((once - never).abs().sum(dtype=torch.float64))
    telling = int((once != never).sum()) >= _TELLING
    # One unit of its type, and what sums in 32 bits leave.
    room = torch.finfo(dtype).eps * (own.abs() + torch.finfo(dtype).smallest_normal) + 2**-24
    room += 2**-18 * (base.abs() + 2 * float(step.abs().max()))

    def is_like(expected: object) -> bool:
        apart = (own - expected).abs()
        return (
            bool(coarse or (apart <= room).all())
            and float(apart.sum(dtype=torch.float64)) <= _CLOSE * moved
        )

    if is_like(once):
        return ONCE if telling else LOST
    if int((own != once).sum()) < _TELLING and (coarse or bool(((own - once).abs() <= room).all())):
        return LOST
    if is_like(never):
        return NEVER
    if any(
        is_like(store(twice.to(dtype)).float()) for twice in (total.float() + step, base + 2 * step)
    ):
        return TWICE
    if not coarse or not as_well(own, once, total.float()):
        return OTHER
    # By another version of the quantiser: what it leaves has nothing to do with the step.
    shift = total.double() - base.to(dtype).double()
    along = (own.double() - total.double()) * shift
    return (
        OTHER
        if float(along.sum().abs()) > 0.5 * float(shift.square().sum()) + 6 * float(along.norm())
        else LOST
    )


def _equal(mine: Tensor, expected: Tensor, room: float = 0) -> bool:
    return mine.shape == expected.shape and bool(
        ((mine.float() - expected.float()).abs() <= room).all()
    )


def _changed(own: Fields, other: Fields, names: Iterable[str]) -> str:
    both = [(name, own.get(name) or None, other.get(name) or None) for name in names]
    return "; ".join(
        f"{name} = {mine!r}, not {others!r}" for name, mine, others in both if mine != others
    )


def _place(name: str) -> str:
    # `layer 7, down_proj` for `model.layers.7.mlp.down_proj.weight`.
    name = re.sub(r"\.(lora_.*|weight)?$", "", name).replace(".bias", " bias")
    found = re.search(r"\.(\d+)\.(?:.+\.)?([\w ]+)$", name)
    return f"layer {found[1]}, {found[2]}" if found else name


def _some(names: Iterable[str]) -> str:
    listed = [*dict.fromkeys(map(_place, names))]
    return (
        ": " + "; ".join(listed[:3]) + (f"; and {len(listed) - 3} more" if len(listed) > 3 else "")
        if listed
        else ""
    )


def _untold(why: str) -> Check:
    return Check("weights", "its tensors", None, why)


def _judged(name: str, found: str, cause: str = "", **numbers: object) -> Check:
    return Check("weights", name, not cause, found, cause, _REMEDY if cause else "", numbers)
