"""Log-probabilities without the padding: on a CPU, a loss computes what its tokens need.

TRL sends every completion through the model at the length of the longest, and asks for the logits
of the padding, too. Here the tokens of all rows lie side by side, as one row: layers that look at a
token alone never see padding, and the logits are those of the completions' tokens, in one product
(for a batch, PyTorch copies the head's weight once a row). Attention, and the sums over tokens that
are the adapter's gradient, get the batch back at its full width, so every number is summed in TRL's
order. It stays the same to the last bit on processors where a row of a product does not depend on
the others; on one with AMX, the gradient's norm of a 135M model differed by 3e-7 in float32.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any, NamedTuple

from workbench.base import processes
from workbench.base.kinds import Fields, Function, Model, Tensor, Trainer
from workbench.training.feature import Feature
from workbench.training.plan import Stage
from workbench.training.plan.precision import fast_bf16
from workbench.training.replaced import replaces

_NAME = "_get_per_token_logps_and_entropies"
_ATTENTION = "workbench_unpadded"
Logps = tuple[Tensor, Tensor | None, None]


def reason_against(model: Any) -> str | None:
    """Why this policy's loss is left to TRL's own path; None: nothing speaks against it."""
    import torch

    config, parts = model.config, _adapters(model)
    plain = {id(one.weight) for one in parts if type(one) is torch.nn.Linear and one.bias is None}
    trained = (one for one in model.parameters() if one.requires_grad)
    drops = (one for one in model.modules() if isinstance(one, torch.nn.Dropout))
    kinds = set(getattr(config, "layer_types", None) or ())
    reasons: Fields = {
        "not on a CPU": model.device.type != "cpu" or torch.cuda.is_available(),
        "several processes": processes.count() > 1,
        "attention other than sdpa": getattr(config, "_attn_implementation", None) != "sdpa",
        "layers other than full attention": config.is_encoder_decoder or kinds - {"full_attention"},
        "more than a LoRA adapter is trained": any(id(one) not in plain for one in trained),
        "dropout": any(one.p for one in drops) or getattr(config, "attention_dropout", 0),
        "gradient checkpointing": getattr(model, "is_gradient_checkpointing", False),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _in_bf16(model: Any) -> bool:
    import torch

    return any(one.dtype == torch.bfloat16 for one in model.parameters())


def _adapters(model: Any) -> list[Any]:
    from peft.tuners.lora import LoraLayer

    layers = [one for one in model.modules() if isinstance(one, LoraLayer)]
    return [part for one in layers for parts in (one.lora_A, one.lora_B) for part in parts.values()]


class OtherTokensError(Exception):
    """An adapter's layer was given other tokens than those of the batch."""


@replaces(_NAME)
class Unpadded(Feature):
    """The loss's log-probabilities without padding. The first batch of a stage is computed both
    ways: where a bit differs from TRL's, TRL's own path computes them all.
    """

    key = "unpadded"
    of_recipe = True
    why_not: str | None = None
    compared = False

    def begin_stage(self, stage: Stage) -> None:
        self.why_not, self.compared = reason_against(self.session.policy.model), False

    def around(self, trainer: Trainer) -> dict[str, Function]:
        """What computes log-probabilities."""
        theirs = getattr(trainer, _NAME, None)
        if theirs is None or "logits_to_keep" not in getattr(trainer, "model_kwarg_keys", ()):
            self.why_not = self.why_not or "this trainer computes them elsewhere"
        if trainer.args.gradient_checkpointing:  # in the model, it begins with the training
            self.why_not = self.why_not or "gradient checkpointing"
        in_bf16 = trainer.accelerator.mixed_precision == "bf16" or _in_bf16(trainer.model)
        if not self.why_not and in_bf16 and fast_bf16():
            # There a row of a product may depend on the rows beside it. The first batch need not
            # show it: the demo's gradients differed from the second on, and without AMX in none.
            self.why_not = "bfloat16 on a processor with AMX"
        if self.why_not or theirs is None:
            return {}

        def logps(model: Model, *batch: Tensor, **asked: Any) -> Any:
            entropy = bool(asked.get("compute_entropy"))
            other = asked.keys() - {"compute_entropy", "batch_size"}
            inputs = any(asked[name] is not None and asked[name] is not False for name in other)
            if self.why_not or inputs or len(batch) != 3:  # images, or a loss of experts
                return theirs(model, *batch, **asked)
            try:
                computed = unpadded_logps(
                    model, *batch, temperature=trainer.temperature, entropy=entropy
                )
                if computed is not None and not self.compared:
                    self.why_not = _difference(computed, lambda: theirs(model, *batch, **asked))
                    self.compared = True
            except OtherTokensError:
                self.why_not = "an adapter on the head, or on experts"
            if self.why_not:
                computed = None  # what its gradients need is freed before theirs is made
            return theirs(model, *batch, **asked) if computed is None else computed

        return {_NAME: logps}

    def result(self, seconds: float) -> Fields:
        return {self.key: self.why_not or True}


def _difference(computed: Any, theirs: Function) -> str | None:
    import torch

    with torch.no_grad():
        pairs = zip(computed[:2], theirs()[:2], strict=True)
    if all(one is other or torch.equal(one, other) for one, other in pairs):
        return None
    return "on this processor it would change a bit"


def unpadded_logps(
    model: Any, ids: Tensor, mask: Tensor, length: Any, *, temperature: float, entropy: bool
) -> Logps | None:
    """TRL's (log-probabilities, entropies or None, None), both [B, `length`], of the last `length`
    tokens of `ids` [B, T]; None where no token counts, or one follows padding.
    """
    import torch
    from transformers.masking_utils import create_causal_mask
    from trl.trainer.utils import selective_log_softmax, selective_log_softmax_and_entropy

    kept = mask.bool()
    valid, before = kept[:, -length:], kept[:, -length - 1 : -1]
    if not valid.any() or not before[valid].all():
        return None
    tokens = _Tokens(kept.flatten().nonzero()[:, 0], ids.shape)
    numbers = tokens.padded(torch.arange(len(tokens.where))).view(ids.shape)
    positions = torch.arange(ids.shape[1]).expand_as(ids)
    causal = create_causal_mask(model.config, ids[..., None], mask, None)
    with tokens.side_by_side(model):
        logits = model(
            input_ids=tokens.of(ids.flatten())[None],
            attention_mask=causal,
            position_ids=tokens.of(positions.flatten())[None],
            logits_to_keep=numbers[:, -length - 1 : -1][valid],  # at the token before each
            use_cache=False,
        ).logits
    targets, entropies = ids[:, -length:][valid][None], None
    if entropy:
        logps, entropies = selective_log_softmax_and_entropy(
            logits, targets, entropy_requires_grad=False, temperature=temperature
        )
        entropies = entropies.new_zeros(valid.shape).masked_scatter(valid, entropies)
    else:
        logps = selective_log_softmax(logits, targets, temperature=temperature)
    return logps.new_zeros(valid.shape).masked_scatter(valid, logps), entropies, None


class _Tokens(NamedTuple):
    """Which N of the B x T places of a batch hold tokens: `where` [N], `shape` (B, T)."""

    where: Tensor
    shape: Any

    def padded(self, tokens: Tensor) -> Tensor:
        """[N, ...] -> [B x T, ...], zeros where there is no token."""
        full = tokens.new_zeros((self.shape.numel(), *tokens.shape[1:]))
        return full.index_copy(0, self.where, tokens)

    def of(self, full: Tensor) -> Tensor:
        """[B x T, ...] -> [N, ...]."""
        return full.index_select(0, self.where)

    @contextlib.contextmanager
    def side_by_side(self, model: Any) -> Generator[None]:
        """Inside, the model takes these tokens as one row; everything is put back."""
        import torch
        from transformers import AttentionInterface
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        class Adapter(torch.autograd.Function):
            # x [N, in], weight [out, in]; the gradient of the weight is summed at full width
            @staticmethod
            def forward(ctx: Any, *given: Any) -> Tensor:
                ctx.save_for_backward(*given)
                return given[0].mm(given[1].t())

            @staticmethod
            def backward(ctx: Any, *grads: Any) -> Any:
                x, weight = ctx.saved_tensors
                of_x = grads[0].mm(weight) if ctx.needs_input_grad[0] else None
                return of_x, self.padded(grads[0]).t().mm(self.padded(x))

        def attention(module: Any, *states: Tensor, **more: Any) -> Any:
            # queries, keys and values: [1, heads, N, d] -> [B, heads, T, d]
            full = [
                self.padded(each[0].transpose(0, 1)).unflatten(0, self.shape).transpose(1, 2)
                for each in states[:3]
            ]
            output, _ = sdpa_attention_forward(module, *full, *states[3:], **more)
            return self.of(output.flatten(0, 1))[None], None

        def forward_of(part: Any) -> Function:
            def forward(x: Tensor) -> Tensor:
                weight = part.weight
                if x.shape[:-1] != (1, len(self.where)):
                    raise OtherTokensError
                if torch.is_autocast_enabled("cpu"):
                    dtype = torch.get_autocast_dtype("cpu")
                    x, weight = x.to(dtype), weight.to(dtype)
                return Adapter.apply(x[0], weight)[None]

            return forward

        parts, config = _adapters(model), model.config
        AttentionInterface.register(_ATTENTION, attention)
        before = config._attn_implementation
        config._attn_implementation = _ATTENTION
        try:
            for part in parts:
                part.forward = forward_of(part)
            yield
        finally:
            for part in parts:
                vars(part).pop("forward", None)
            config._attn_implementation = before
