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
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.errors import ExportError, WorkbenchError
from workbench.exporting import gguf, merging
from workbench.exporting.artefacts import Artefact
from workbench.exporting.checks import Check
from workbench.kinds import Fields, Tensor
from workbench.training.loading import quiet_imports, reading

if TYPE_CHECKING:
    import torch

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
_REMEDY = (
    "export the run again, with overwrite, beside the exact base and revision that it was"
    " trained on"
)
Store = Callable[[Tensor], Tensor]  # what a format makes of a tensor, read back


def few_apart(stored: Tensor, quantised: Tensor, wanted: Tensor) -> bool:
    """True if at most a few weights are quantised differently.

    A quantiser takes the nearest of a few numbers: another version, or a GPU, rounds only some
    weights differently.
    """
    return bool((stored - quantised).norm(1) <= _CLOSE * (quantised - wanted).norm(1))


class _Model:
    """A saved model's tensors by name and its config; with `in_nf4`, matrices that bitsandbytes
    keeps in NF4 are dequantised. The head of a tied one is its embeddings, unless it is stored.
    """

    def __init__(self, source: str | Path, in_nf4: bool = False) -> None:
        with quiet_imports():
            from transformers import AutoConfig

        stored = merging.tensors_of(source)
        with reading(f"config of {Path(source).name}"):
            self.config = AutoConfig.from_pretrained(str(source), trust_remote_code=False)
        # A 4-bit weight has its scales beside it: they are no tensors of the model.
        self.tensors = {name: read for name, read in stored.items() if ".weight." not in name}
        self.coarse = {name for name in self.tensors if in_nf4 and f"{name}.absmax" in stored}
        for name in self.coarse:
            self.tensors[name] = functools.partial(merging.dequantised, stored, name)
        self.embeddings = next(filter(_EMBEDDINGS.search, sorted(self.tensors)), "")
        self.tied = bool(self.config.get_text_config().tie_word_embeddings and self.embeddings)
        self._take_head()

    def _take_head(self) -> None:
        self.stores_head = HEAD in self.tensors
        if self.tied:
            self.tensors.setdefault(HEAD, self.tensors[self.embeddings])

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]()

    def dtype(self, name: str) -> torch.dtype:
        """The 16-bit type that its sum was rounded to."""
        return self[name].dtype

    def stored_as(self, name: str, tensor: Tensor) -> Tensor:
        """What a tensor becomes where it is stored under this name."""
        tensor = tensor.to(self.dtype(name))
        return merging.in_nf4(tensor) if name in self.coarse else tensor

    def same(self, name: str, expected: Tensor) -> bool:
        stored = self[name]
        if stored.shape != expected.shape:
            return False
        once = self.stored_as(name, expected)
        return stored.equal(once) or (
            name in self.coarse and few_apart(stored.float(), once.float(), expected.float())
        )

    def parameters(self) -> set[str]:
        """Names of what loading wants."""
        import torch
        from transformers import AutoModelForCausalLM

        with reading(f"config of {Path(self.config.name_or_path).name}"), torch.device("meta"):
            model = AutoModelForCausalLM.from_config(self.config, trust_remote_code=False)
        return set(model.state_dict())


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
            raise ExportError(
                f"how llama.cpp stores the tensors of {kind!r} is not known here",
                rule=f"known are {', '.join(_KNOWN)}",
                remedy="trust what is measured instead",
            )
        architecture = next(key for key, name in library.MODEL_ARCH_NAMES.items() if name == kind)
        names = library.get_tensor_name_map(architecture, self.config.num_hidden_layers)
        stored = {tensor.name: tensor for tensor in reader.tensors}
        inside = {
            name: names.get_name(name, try_suffixes=(".weight", ".bias"))
            for name in {*base.tensors, *whole, HEAD}
        }
        self._known = {name for name, place in inside.items() if place}
        self._stored = {name: stored[place] for name, place in inside.items() if place in stored}
        self.tensors = {name: functools.partial(self._read, name) for name in self._stored}
        self.embeddings = base.embeddings
        # llama.cpp takes the embeddings for a head that is not stored.
        self.tied = HEAD not in self.tensors
        self._take_head()
        if self.tied:
            self._stored[HEAD] = self._stored[self.embeddings]
        self._library = library
        self._permuted = kind == "llama"
        self._type = self.config.dtype
        if self._type not in (torch.float16, torch.bfloat16):
            self._type = torch.bfloat16
        exact = (library.GGMLQuantizationType.F32, library.GGMLQuantizationType.F16)
        self.coarse = {
            name for name, tensor in self._stored.items() if tensor.tensor_type not in exact
        }

    def _read(self, name: str) -> Tensor:
        import torch

        stored = self._stored[name]
        numbers = self._library.quants.dequantize(stored.data, stored.tensor_type)
        tensor = torch.from_numpy(numbers.copy())
        if self._permuted and (which := re.search(r"\.([qk])_proj\.\w+$", name)):
            many = "num_attention_heads" if which[1] == "q" else "num_key_value_heads"
            by_head = tensor.reshape(getattr(self.config, many), -1, 2, *tensor.shape[1:])
            tensor = by_head.transpose(1, 2).reshape(tensor.shape)
        return tensor

    def dtype(self, name: str) -> torch.dtype:
        return self._type

    def stored_as(self, name: str, tensor: Tensor) -> Tensor:
        import torch

        kind, tensor = self._stored[name].tensor_type, tensor.to(self._type).float()
        if kind == self._library.GGMLQuantizationType.F32:
            return tensor
        return torch.from_numpy(gguf.rounded(tensor.half().float().numpy(), kind))

    def parameters(self) -> set[str]:
        return self._known


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
        self.whole: merging.Tensors = {}
        self.otherwise: set[str] = set()
        for key, read in self.tensors.items():
            name = key.removeprefix("base_model.model.").replace(".base_layer.", ".")
            layer, kind, _ = re.split(r"\.((?:lora_|token_adapter).*)|$", name, maxsplit=1)
            if not kind:
                self.whole[layer] = read
            elif layer not in steps or kind not in ("lora_A.weight", "lora_B.weight"):
                # DoRA's magnitudes, LoRA of embeddings, of a bias or of stacked experts
                self.otherwise.add(layer)

    def changes(self) -> bool:
        """Whether anything but LoRA's A is not zero."""
        return any(read().any() for name, read in self.tensors.items() if "_A." not in name)


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
        if artefact.format == "adapter":
            own = _Adapter(artefact.path)
        elif not in_gguf:
            own = _Model(artefact.path, in_nf4=artefact.format == "merged_4bit")
    except WorkbenchError as error:
        return [_judged("its files", error.value, "unreadable")]
    try:
        adapter = _Adapter(artefact.run.adapter)
        if isinstance(own, _Adapter):
            return _same_adapter(own, adapter)
        base = _Model(merging.base_of(artefact.run))
        if more := adapter.otherwise | (adapter.added.keys() - base.tensors.keys()):
            return [
                _untold(
                    "the adapter does more than add s B A to layers that the base stores under"
                    f" their names{_some(more)}"
                )
            ]
        held = merging.four_bit(artefact.run) if artefact.into == "dequantised" else None
        # another llama.cpp than ours may refuse
        with reading(artefact.gguf.name) if in_gguf else contextlib.nullcontext():
            own = own or _Gguf(artefact.gguf, base, adapter.whole)
            return _Merge(own, base, adapter, held).checks()
    except WorkbenchError as error:
        return [_untold(f"what it is compared with cannot be read: {error.value}")]


def _same_adapter(own: _Adapter, adapter: _Adapter) -> list[Check]:
    # a run that learnt nothing has such an adapter itself
    if not own.changes() and adapter.changes():
        return [
            _judged("its tensors", "every B is zero: the adapter changes nothing", "equals_base")
        ]
    mine, theirs = own.tensors, adapter.tensors
    other = [name for name in mine.keys() & theirs if not mine[name]().equal(theirs[name]())]
    other += mine.keys() ^ theirs
    settings = sorted({*own.config, *adapter.config} - {"base_model_name_or_path"})
    return [
        _compared("its tensors", mine.keys() | theirs, other, "run's", "other_adapter"),
        _settings("its settings", own.config, adapter.config, settings, "other_adapter"),
    ]


class _Merge:
    """A merged artefact beside its base and the run's adapter; `held`: the 4-bit weights that it
    was merged into.
    """

    def __init__(
        self, own: _Model, base: _Model, adapter: _Adapter, held: merging.FourBit | None
    ) -> None:
        self.own, self.base, self.adapter, self.held = own, base, adapter, held
        self.how = functools.cache(self._how)

    def checks(self) -> list[Check]:
        own, base = self.own.tensors.keys(), self.base.tensors.keys()
        steps, whole = self.adapter.added.keys(), self.adapter.whole.keys()
        head = self.base.tied or self.own.tied or HEAD not in own
        names = (base | whole) - ({HEAD} if head else set())
        checks = self._names(names - own, own - base - whole)
        if head and HEAD in base:
            checks.append(self._head())
        names &= own
        bases = names - steps - whole
        other = {name for name in names - steps if not self._right(name)}
        if layers := {name: self.how(name) for name in steps if name in names}:
            # Another adapter, or this one at another scale, changes no other tensor; another base
            # does.
            checks.append(_layers(layers, "wrong_base" if bases & other else "other_adapter"))
        for whose, some, cause in (
            ("base's", bases, "wrong_base"),
            ("adapter's", names & whole, "module_lost"),
        ):
            if some:
                checks.append(
                    _compared(f"other tensors, the {whose}", some, some & other, whose, cause)
                )
        if not isinstance(self.own, _Gguf):
            configs = [each.config.get_text_config().to_dict() for each in (self.own, self.base)]
            checks.append(_settings("config.json", *configs, _DECIDING, "wrong_base"))
        return checks

    def _before(self, name: str) -> Tensor:
        # What the step was added to.
        stored = self.base[name]
        four = self.held(name.removesuffix(".weight"), stored) if self.held else None
        return stored if four is None else four

    def _how(self, name: str) -> str:
        own, before, step = self.own, self._before(name), self.adapter.added[name]()
        step = step.T if self.adapter.config.get("fan_in_fan_out") else step
        stored = own[name]
        store = functools.partial(own.stored_as, name)
        seen = added(stored, before, step, own.dtype(name), store)
        if seen in (ONCE, LOST):
            return seen
        # Not merged is not merged, also where the sum was to be made with the dequantised weight.
        return NEVER if stored.float().equal(store(self.base[name]).float()) else seen

    def _right(self, name: str) -> bool:
        if name in self.adapter.added:
            return self.how(name) in (ONCE, LOST)
        whole = self.adapter.whole.get(name)
        return self.own.same(name, whole() if whole else self._before(name))

    def _names(self, missing: set[str], extra: set[str]) -> list[Check]:
        if missing or extra:
            # a model stores more than it loads: buffers of old versions, parts for other tasks
            wanted = self.own.parameters()
            missing, extra = missing & wanted, extra - wanted
        if not missing and not extra:
            return []
        what = f"{len(missing)} missing, and invented in loading; {len(extra)} not in the base"
        what += _some([*missing, *extra])
        return [_judged("names of its tensors", what, "module_lost" if missing else "wrong_base")]

    def _head(self) -> Check:
        # A head that was trained apart from the embeddings, to which the base ties it, is lost
        # where they are tied again.
        own, adapter = self.own, self.adapter
        trained = {HEAD, self.base.embeddings} & {*adapter.added, *adapter.whole}
        if HEAD not in own.tensors:
            lost = "not stored, and not tied to the embeddings: loading invents one"
        elif not self.base.tied or (trained and not adapter.config.get("ensure_weight_tying")):
            lost = "" if self._right(HEAD) else "not as trained"
        else:
            same = own.same(HEAD, own[own.embeddings])
            lost = "" if same else "it differs from the embeddings, to which the base ties it"
        good = "tied to the embeddings" if own.tied else "as trained"
        return _judged("output head", lost or good, "tied_head_lost" if lost else "")


def _layers(layers: dict[str, str], foreign: str) -> Check:
    # One verdict on how s B A was added to each.
    what = f"merged - base = the adapter's change (s B A) in {len(layers)} layers"
    clear = {name: how for name, how in layers.items() if how != LOST}
    wrong = {name: how for name, how in clear.items() if how != ONCE}
    kinds = set(clear.values())
    if not clear:
        why = "it is lost in rounding in all of them"
        return Check("weights", what, None, why, numbers={"added": layers}, rounding=True)
    if not wrong:
        cause, verdict = "", f"once in {len(clear)}"
    elif kinds in ({NEVER}, {TWICE}):
        cause = "not_merged" if kinds == {NEVER} else "merged_twice"
        verdict = f"added {kinds.pop()} in all {len(clear)}"
    else:
        cause = foreign if OTHER in kinds else "layer_skipped"
        listed = _some(f"{_place(name)}: {how}" for name, how in wrong.items())
        verdict = f"not added once in {len(wrong)} of {len(clear)}{listed}"
    if lost := len(layers) - len(clear):
        verdict += f"; in {lost} it is lost in rounding"
    return _judged(what, verdict, cause, added=layers)


def added(
    stored: Tensor,
    base: Tensor,
    step: Tensor,
    dtype: torch.dtype | None = None,
    store: Store = lambda tensor: tensor,
) -> str:
    """How `step` (32 bits) was added to `base` before the sum was rounded to `dtype`, by default
    that of `stored`.

    `store`: what became of the rounded sum where it was stored, if more did. LOST: the step is too
    small for that type to tell. OTHER: nothing known explains what is there.
    """
    import torch

    if not stored.shape == base.shape == step.shape:
        return OTHER
    dtype = dtype or stored.dtype
    own, base = stored.float(), base.float()
    total = (base + step).to(dtype)
    never, once = store(base.to(dtype)).float(), store(total).float()
    coarse = bool(((once - total.float()).abs() > 2**-24).any())
    moved = (once - never).abs().sum(dtype=torch.float64)
    # One unit of its type, and what sums in 32 bits leave.
    limits = torch.finfo(dtype)
    room = limits.eps * (own.abs() + limits.smallest_normal) + 2**-24
    room += 2**-18 * (base.abs() + 2 * step.abs().max())

    def within(expected: Tensor) -> bool:
        return coarse or bool(((own - expected).abs() <= room).all())

    def is_like(expected: Tensor) -> bool:
        apart = (own - expected).abs().sum(dtype=torch.float64)
        return within(expected) and bool(apart <= _CLOSE * moved)

    if is_like(once):
        return ONCE if int((once != never).sum()) >= _TELLING else LOST
    if int((own != once).sum()) < _TELLING and within(once):
        return LOST
    if is_like(never):
        return NEVER
    # rounded between the two, or once
    if any(
        is_like(store(sum_.to(dtype)).float()) for sum_ in (total.float() + step, base + 2 * step)
    ):
        return TWICE
    return LOST if coarse and few_apart(own, once, total.float()) else OTHER


def _settings(what: str, own: Fields, other: Fields, names: Iterable[str], cause: str) -> Check:
    changed = [
        f"{name} = {own.get(name)!r}, not {other.get(name)!r}"
        for name in names
        if (own.get(name) or None) != (other.get(name) or None)
    ]
    return _judged(what, "; ".join(changed) or "as they were", cause if changed else "")


def _compared(
    what: str, names: Collection[str], other: Collection[str], whose: str, cause: str
) -> Check:
    if other:
        return _judged(what, f"{len(other)} of {len(names)} differ{_some(other)}", cause)
    return _judged(what, f"all {len(names)} are the {whose}")


def _place(name: str) -> str:
    # `layer 7, down_proj` for `model.layers.7.mlp.down_proj.weight`.
    name = re.sub(r"\.(lora_.*|weight)?$", "", name).replace(".bias", " bias")
    numbered = re.search(r"\.(\d+)\.(?:.+\.)?([\w ]+)$", name)
    return f"layer {numbered[1]}, {numbered[2]}" if numbered else name


def _some(names: Iterable[str]) -> str:
    listed = sorted(set(map(_place, names)))
    more = f"; and {len(listed) - 3} more" if len(listed) > 3 else ""
    return f": {'; '.join(listed[:3])}{more}"


def _untold(why: str) -> Check:
    return Check("weights", "its tensors", None, why)


def _judged(name: str, found: str, cause: str = "", **numbers: object) -> Check:
    return Check("weights", name, not cause, found, cause, _REMEDY if cause else "", numbers)
