"""What runs on an emulated GPU, in a process of its own: `python scenarios.py CARD BACKEND FOLDER SCENARIO...`.

Each scenario writes what it found, or its traceback, to FOLDER/NAME.json; the tests judge. One that fails ends no other.
"""

from __future__ import annotations

import functools
import json
import math
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), *(str(Path(__file__).parents[1] / name) for name in (".", "train", ""))]

import emulated_gpu  # noqa: E402

GRPO = {
    "max_steps": 2,
    "num_generations": 4,
    "per_device_train_batch_size": 8,
    "max_completion_length": 12,
    "learning_rate": 5e-3,
    "beta": 0.0,
}
FORMAT, LENGTH = "strict_format_reward", "length_reward"
SCENARIOS: dict[str, Callable[[], Any]] = {}


def scenario(function: Callable[[], Any]) -> Callable[[], Any]:
    SCENARIOS[function.__name__] = function
    return function


# --- what they share --------------------------------------------------------------------------------------------------


class Seen:
    """What the trainer itself worked with, noted on its way through it."""

    def __init__(self) -> None:
        self.trainer: Any = None
        self.generated: list[dict[str, Any]] = []  # by generation batch
        self.trained: list[dict[str, Any]] = []  # by forward and backward pass


SEEN = Seen()


def watch(trainer_class: type) -> None:
    """Note what the trainers of a class generate and learn from."""
    generate, learn = trainer_class._generate_and_score_completions, trainer_class.compute_loss

    @functools.wraps(generate)
    def generating(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = generate(self, *args, **kwargs)
        SEEN.trainer = self
        SEEN.generated.append(
            {
                "step": self.state.global_step + 1,
                "weights": dict(zip(self.reward_func_names, self.reward_weights.tolist(), strict=True)),
                "advantages": found["advantages"].flatten().tolist(),
                "masks": _rows_of(found, "tool_mask"),
            }
        )
        return found

    @functools.wraps(learn)
    def learning(self: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        SEEN.trained.append(
            {
                "step": self.state.global_step + 1,
                "beta": self.beta,
                "learning_rate": self.optimizer.param_groups[0]["lr"],
                "advantages": inputs["advantages"].flatten().tolist(),
                "masks": _rows_of(inputs, "tool_mask"),
            }
        )
        return learn(self, model, inputs, *args, **kwargs)

    trainer_class._generate_and_score_completions, trainer_class.compute_loss = generating, learning


def _rows_of(inputs: Any, name: str) -> list[list[int]]:
    """A mask's rows without their padding; none where there is no such mask."""
    if name not in inputs:
        return []
    lengths = inputs["completion_mask"].sum(dim=1).tolist()
    return [row[:length].tolist() for row, length in zip(inputs[name], lengths, strict=True)]


class Asks:
    """A watcher that asks for things when the rows of some steps have been logged; they are answered a step later."""

    def __init__(self, asked: dict[int, list[tuple[str, dict[str, Any]]]]) -> None:
        self.asked, self.ids = asked, {}

    def begin(self, run: Any, total_steps: int, settings: dict[str, Any]) -> None:
        self.run = run

    def update(self, step: int, values: dict[str, Any]) -> None:
        from workbench.run.control_file import send

        for action, details in self.asked.get(step, []):
            self.ids[action] = send(self.run, action, by="test", **details)

    def end(self, message: str) -> None:
        pass


def fresh(*, load_in_4bit: bool = False) -> Any:
    from workbench.training.policy import load_policy

    return load_policy("tiny", backend=BACKEND, load_in_4bit=load_in_4bit)


@functools.cache
def _reused() -> tuple[Any, dict[str, Any]]:
    policy = fresh()
    return policy, {name: value.detach().clone() for name, value in trainable(policy)}


def untrained() -> Any:
    """A policy that has not learnt anything yet: one for many runs, as loading takes long."""
    import torch

    policy, first = _reused()
    with torch.no_grad():
        for name, value in trainable(policy):
            value.copy_(first[name])
    policy.trained_in.clear()
    return policy


def trainable(policy: Any) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in policy.model.named_parameters() if value.requires_grad]


def trained(
    name: str,
    policy: Any,
    watchers: Any = (),
    task: Any = None,
    load_in_4bit: bool = False,
    weights: Any = None,
    more: Any = None,
    **grpo,
) -> Any:
    """A run, and nothing seen of any before it."""
    from workbench.recipe import Recipe
    from workbench.tiny.task import task as arithmetic
    from workbench.training.trainer import train

    SEEN.__init__()
    asked = {
        "run_name": name, "policy": {"load_in_4bit": load_in_4bit, "backend": BACKEND}, "grpo": {**GRPO, **grpo},
        "reward_weights": weights or {}, **(more or {}),
    }  # fmt: skip
    return train(Recipe.of(asked), policy=policy, task=task or arithmetic(32, 8), watchers=list(watchers), runs=FOLDER / "runs")


def rollouts(run: Any, columns: str) -> list[dict[str, Any]]:
    from workbench.run.rollouts import query

    frame = query(run.rollouts, f'select {columns} from rollouts order by step, "group", generation')
    return frame.to_dict("records")


def checkpoints(run: Any) -> list[str]:
    return sorted(folder.name for folder in run.checkpoints.iterdir())


# --- the scenarios ----------------------------------------------------------------------------------------------------


@scenario
def float32() -> Any:
    """A policy in float32, and the loss whose cap Unsloth chooses if nobody else does."""
    from workbench.training.policy import load_policy

    run = trained("float32", load_policy("tiny", backend=BACKEND, load_in_4bit=False, dtype="float32"), loss_type="cispo")
    trainer = SEEN.trainer
    return {
        "weights": sorted({str(v.dtype) for _, v in trainer.model.named_parameters()}),
        "precision": {"bf16": trainer.args.bf16, "fp16": trainer.args.fp16},
        "epsilon_high": trainer.epsilon_high,
        "status": run.result()["status"],
    }


@scenario
def names() -> Any:
    """What the workbench reads and replaces of a trainer, of its model and of Unsloth's class, by name."""
    import inspect

    from test_trainer_internals import names_used
    from unsloth import FastLanguageModel

    run = trained("names", untrained(), max_steps=1)
    trainer = SEEN.trainer
    source = "".join(inspect.getsource(kind) for kind in type(trainer).__mro__ if kind is not object)
    used = names_used()

    def missing(there: Callable[[str], bool], source: str) -> list[str]:
        # One of them is set when training begins.
        return sorted(name for name in used if not there(name) and f"self.{name} =" not in source)

    return {
        "used": sorted(used),
        "missing": missing(functools.partial(hasattr, trainer), source),
        "missing_if_renamed": missing(
            lambda name: name != "_generate" and hasattr(trainer, name), source.replace("_generate", "_sample")
        ),
        "calls": {
            called: called in source
            for called in ("self._generate(", "self._get_train_sampler", "self.create_scheduler(", "self._step ")
        },
        "left": 'padding_side="left"' in source.replace(" = ", "="),
        "accepted": {
            name: sorted(inspect.signature(getattr(FastLanguageModel, name)).parameters)
            for name in ("from_pretrained", "get_peft_model", "for_inference", "for_training")
        },
        "generation": run.result()["generation"],
        "generated": len(SEEN.generated),
    }


@scenario
def advantages() -> Any:
    """What the record says of advantages, what the trainer made of the scores, and what it learnt from."""
    asked = {
        "group": {},
        "batch": {"scale_rewards": "batch"},
        "none": {"scale_rewards": "none"},
        "dr_grpo": {"loss_type": "dr_grpo"},
        "dr_grpo, scaled": {"loss_type": "dr_grpo", "scale_rewards": "group"},
        "accumulated": {
            "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "steps_per_generation": 4,
            "num_iterations": 2, "max_steps": 4,
        },
    }  # fmt: skip
    found = {}
    for number, (name, settings) in enumerate(asked.items()):
        run = trained(f"advantages-{number}", untrained(), **settings)
        found[name] = {
            "recorded": [row["advantage"] for row in rollouts(run, "advantage")],
            "generated": [value for batch in SEEN.generated for value in batch["advantages"]],
            "trained": [value for batch in SEEN.trained for value in batch["advantages"]],
            "scale_rewards": run.manifest()["settings"]["in_force"]["scale_rewards"],
        }
    return found


@scenario
def turns() -> Any:
    """What the record says of who wrote each token, what the trainer made of it, and what the loss was handed."""
    import random

    from small_models import make_speaking
    from test_turns import SCRIPTS, add, drawn_for, game

    from workbench.recipe import Recipe
    from workbench.run.rollouts import read_batches
    from workbench.training.attach import attach
    from workbench.training.plan.prepare import prepare
    from workbench.training.policy import load_policy
    from workbench.training.trainer import make_trainer

    def trained(name: str, masked: bool) -> Any:
        SEEN.__init__()
        asked = {"run_name": name, "policy": policy, "grpo": grpo}
        plan = prepare(Recipe.of(asked), game(tools=[add]))
        trainer = make_trainer(plan, load_policy(plan))
        trainer.script = random.Random(7)
        trainer._generate_single_turn = lambda prompt_ids, *_, **__: drawn_for(trainer, SCRIPTS["tools"], prompt_ids)
        if not masked:  # as of a version that drops TRL's mask
            made = trainer._generate
            trainer._generate = lambda prompts: (*(own := made(prompts))[:2], [[1] * len(ids) for ids in own[1]], *own[3:])
        run = attach(trainer, plan, watchers=[], runs=FOLDER / "runs")
        trainer.train()
        return trainer, run, [event["why"] for event in run.events() if event["event"] == "unmasked"]

    policy = {"name": make_speaking(FOLDER / "speaks"), "load_in_4bit": False, "backend": BACKEND}
    grpo = {**GRPO, "max_completion_length": 160, "max_tool_calling_iterations": 3}
    *_, told = trained("unmasked", masked=False)
    in_loss = [mask for batch in SEEN.trained for mask in batch["masks"]]
    trainer, run, silent = trained("turns", masked=True)
    batches = [*read_batches(run)]
    return {
        "told": (told, silent),
        "unmasked": in_loss,
        "recorded": [[int(turn.in_loss) for turn in own for _ in range(turn.tokens)] for batch in batches for own in batch.turns],
        "generated": [mask for batch in SEEN.generated for mask in batch["masks"]],
        "trained": [mask for batch in SEEN.trained for mask in batch["masks"]],
        "lengths": [float(batch.lengths.mean()) for batch in batches],
        "logged": [row["completions/mean_length"] for row in run.metrics()],
        "compiled": type(trainer).__module__,
    }


@scenario
def around() -> Any:
    """A run whose held-out prompts are measured beside one without, and one that begins with a warm start."""
    from safetensors.torch import load_file

    from workbench.run.held_out import held_out

    measured = {"eval_every": 1, "eval_prompts": 4}
    plain, with_it = trained("plain", untrained()), trained("measured", untrained(), more=measured)
    mine, theirs = (load_file(run.final / "adapter_model.safetensors") for run in (plain, with_it))
    warm = {"samples": 4, "tries": 400, "learning_rate": 1e-3}
    warmed = trained("warmed", untrained(), more={**measured, "warm_start": warm}, max_completion_length=96)
    return {
        "same": [name for name in mine if not (mine[name] == theirs[name]).all()] == [],
        "measured": [own["step"] for own in held_out(with_it.events())],
        "warmed": [(own["step"], own["adapter"] == "base") for own in held_out(warmed.events())],
        "best": warmed.best.name,
        "warm_start": warmed.manifest()["warm_start"],
        "result": {key: warmed.result()[key] for key in ("status", "steps")},
        "failed": [event for run in (with_it, warmed) for event in run.events() if "failed" in event["event"]],
    }


@scenario
def continuing() -> Any:
    """A run that is stopped and goes on with a policy loaded anew, beside one that never stopped."""
    from safetensors.torch import load_file

    from workbench.tiny.task import task as arithmetic
    from workbench.training.trainer import continue_run

    settings = {"max_steps": 4, "beta": 0.01, "lr_scheduler_type": "cosine", "warmup_steps": 1}
    whole = trained("whole", untrained(), **settings)
    scalers = [_scaler()]
    part = trained("part", untrained(), [Asks({1: [("stop", {})]})], **settings)
    stopped = dict(part.result())
    saved = load_file(part.checkpoints / "checkpoint-2" / "optimizer.safetensors")
    emulated_gpu.Generator.put_back.clear()
    continue_run(part, policy=fresh(), task=arithmetic(32, 8))
    scalers.append(_scaler())
    mine, theirs = (load_file(run.final / "adapter_model.safetensors") for run in (part, whole))
    kept = 'step, "group", generation, prompt_id, completion, total, advantage'
    return {
        "stopped": {key: stopped[key] for key in ("status", "steps")},
        "result": {key: part.result()[key] for key in ("status", "steps")},
        "whole": list(whole.metrics()),
        "part": list(part.metrics()),
        "same_rollouts": rollouts(part, kept) == rollouts(whole, kept),
        "adapter": {name: bool((mine[name] == value).all()) for name, value in theirs.items()},
        "inexact": [event.get("inexact") for event in part.events() if event["event"] == "continued"],
        "generator": {"saved": int(saved["random.cuda"][0]), "put_back": list(emulated_gpu.Generator.put_back)},
        "scalers": scalers,
        "trainer": whole.manifest()["trainer"],
    }


def _scaler() -> Any:
    """State of the latest trainer's gradient scaler; None: it has none."""
    scaler = SEEN.trainer.accelerator.scaler
    return scaler and scaler.state_dict()


@scenario
def steering() -> Any:
    """Every kind of request, and what the trainer worked with at each step."""
    from workbench.run.control_file import answer_to

    asks = Asks(
        {
            1: [("weight", {"function": FORMAT, "value": 2.5}), ("beta", {"value": 0.05})],
            2: [("learning_rate", {"value": 2e-3}), ("mute", {"function": LENGTH}), ("checkpoint", {}), ("sample", {})],
            3: [("stop", {})],
        }
    )
    run = trained("steered", untrained(), [asks], max_steps=6)
    return {
        "answers": {action: answer_to(run, identity) for action, identity in asks.ids.items()},
        "generated": [{key: batch[key] for key in ("step", "weights")} for batch in SEEN.generated],
        "trained": [{key: batch[key] for key in ("step", "beta", "learning_rate")} for batch in SEEN.trained],
        "rows": list(run.metrics()),
        "weights": rollouts(run, f'step, "group", generation, "weight.{FORMAT}" as format, "weight.{LENGTH}" as length'),
        "checkpoints": checkpoints(run),
        "samples": sum(1 for _ in (run.path / "samples.jsonl").open()),
        "result": {key: run.result()[key] for key in ("status", "steps")},
    }


@scenario
def health() -> Any:
    """A run in which one function cannot pay and every completion is cut."""
    from ill_runs import one_line_reward, sums

    from workbench.health import examine_run
    from workbench.rewards.library import correctness_reward

    task = sums(correctness_reward, one_line_reward)
    run = trained("ill", untrained(), task=task, max_steps=4, per_device_train_batch_size=32)
    return {
        "events": [event for event in run.events() if event["event"] == "health"],
        "found": run.result()["health"],
        "examined": {verdict.name: verdict.state for verdict in examine_run(run)},
        "watchdog_failed": [event for event in run.events() if event["event"] == "watchdog_failed"],
    }


@scenario
def four_bit() -> Any:
    """A policy in 4 bits, and two steps through Unsloth's fused adapters."""
    from bitsandbytes.functional import dequantize_4bit
    from unsloth.kernels.utils import fast_dequantize

    from workbench.training.plan.loading import linear4bit_layers

    policy = fresh(load_in_4bit=True)
    layers = linear4bit_layers(policy.model)
    weights = [layer.weight for layer in layers]
    unpacked = [
        float((dequantize_4bit(w.data, w.quant_state) - fast_dequantize(w.data, w.quant_state)).abs().max()) for w in weights
    ]
    before = {name: value.detach().clone() for name, value in trainable(policy)}
    first = policy.model.base_model.model.model.layers[0]
    fused = [first.self_attn.apply_qkv.__name__, first.self_attn.apply_o.__name__, first.mlp.forward.__name__]
    emulated_gpu.CALLS.clear()
    run = trained("nf4", policy, load_in_4bit=True)
    return {
        "layers": len(layers),
        "hidden_layers": policy.model.config.num_hidden_layers,
        "policy": policy.found(),
        "unpacked_differs_by": max(unpacked),
        "before": sorted({str(value.dtype) for value in before.values()}),
        "after": sorted({str(value.dtype) for _, value in trainable(policy)}),
        "moved": [bool((value != before[name]).any()) for name, value in trainable(policy) if "lora_B" in name],
        "fused": fused,
        "calls": dict(emulated_gpu.CALLS),
        "rows": list(run.metrics()),
        "result": {key: run.result()[key] for key in ("status", "steps")},
        "trainer": run.manifest()["trainer"],
        "still_4bit": len(linear4bit_layers(policy.model)),
    }


@scenario
def plain_four_bit() -> Any:
    """A policy in 4 bits with the plain backend, whose trainer turns the adapter into bfloat16: two steps."""
    policy = fresh(load_in_4bit=True)
    before = {name: value.detach().clone() for name, value in trainable(policy)}
    run = trained("plain-nf4", policy, load_in_4bit=True)
    return {
        "before": sorted({str(value.dtype) for value in before.values()}),
        "after": sorted({str(value.dtype) for _, value in trainable(policy)}),
        "moved": [bool((value != before[name]).any()) for name, value in trainable(policy) if "lora_B" in name],
        "policy": policy.found(),
        "rows": list(run.metrics()),
        "result": {key: run.result()[key] for key in ("status", "steps")},
    }


@scenario
def precision() -> Any:
    """Two steps as the card has it by itself: what is in force, and what the plan said would be."""
    import torch

    import workbench as wb
    from workbench.recipe import Recipe
    from workbench.tiny.task import task as arithmetic

    task = arithmetic(32, 8)

    def planned(**asked: Any) -> dict[str, Any]:
        policy = {"load_in_4bit": False, "backend": BACKEND, **asked.pop("policy", {})}
        found = wb.plan(Recipe.of({"policy": policy, "grpo": {**GRPO, **asked}}), task=task)
        rows = {row.name: row.in_force for row in found.rows if row.name in ("bf16", "fp16")}
        memory = getattr(found.memory, "verdict", None)
        return {
            "rows": rows,
            "notes": found.notes,
            "generation": found.generation,
            "words": found.words,
            "memory": memory,
        }

    found = {
        "plan": planned(),
        "bf16 asked": planned(bf16=True),
        "fp16 asked": planned(fp16=True),
        "bfloat16 asked": planned(policy={"dtype": "bfloat16"}),
    }
    policy = untrained()
    run = trained("precise", policy)
    trainer, manifest = SEEN.trainer, run.manifest()
    scaler = trainer.accelerator.scaler
    return {
        **found,
        "device_count": torch.cuda.device_count(),
        "n_gpu": trainer.args.n_gpu,
        "train_batch_size": trainer._train_batch_size,
        "parallel": type(trainer.model_wrapped).__name__,
        "completions": [len(batch["advantages"]) for batch in SEEN.generated],
        "in_force": {name: manifest["settings"]["in_force"].get(name) for name in ("bf16", "fp16")},
        "args": {"bf16": trainer.args.bf16, "fp16": trainer.args.fp16},
        "mixed": trainer.accelerator.mixed_precision,
        "scaler": None if scaler is None else {"scale": scaler.get_scale(), "enabled": scaler.is_enabled()},
        "policy": policy.found(),
        "weights": sorted({str(v.dtype) for name, v in policy.model.named_parameters() if "lora" not in name}),
        "adapter": sorted({str(v.dtype) for _, v in trainable(policy)}),
        "rows": list(run.metrics()),
        "trainer": manifest["trainer"],
        "rollouts": len(rollouts(run, "advantage")),
        "bf16_supported": torch.cuda.is_bf16_supported(including_emulation=False),
    }


@scenario
def adapters() -> Any:
    """Runs that begin from adapters of other programs: KL of the first step, and the step that each took, by reference."""
    import foreign_adapters

    from workbench.recipe import Recipe
    from workbench.training.policy import load_policy

    found: dict[str, Any] = {}
    for layout in ("unsloth", "llama_factory"):
        folder = str(foreign_adapters.leave(layout, FOLDER / layout))
        for reference in ("base", "adapter"):
            part = {"backend": BACKEND, "load_in_4bit": False, "adapter": folder, "reference": reference}
            policy = load_policy(Recipe(policy=part))
            before = {name: value.detach().clone() for name, value in trainable(policy)}
            run = trained(f"{layout}-{reference}", policy, more={"policy": part}, beta=0.1)
            moved = sum(float((value - before[name]).abs().sum()) for name, value in trainable(policy))
            said = run.manifest()["reference"]
            found[f"{layout}, {reference}"] = {"said": said, "kl": run.metrics()[0]["kl"], "moved": moved}
    return found


@scenario
def overflow() -> Any:
    """float16's scaler meets a gradient that is infinite: that step changes nothing, and the next one goes on."""
    policy = untrained()
    name, parameter = trainable(policy)[0]
    kept: dict[int, Any] = {}

    class Poison(Asks):
        def update(self, step: int, values: dict[str, Any]) -> None:
            super().update(step, values)
            kept[step] = {key: value.detach().clone() for key, value in trainable(policy)}
            if step == 1:
                hook = parameter.register_hook(lambda gradient: (hook.remove(), gradient * math.inf)[1])

    run = trained("overflow", policy, [Poison({})], max_steps=4)
    scaler = SEEN.trainer.accelerator.scaler

    def moved(before: int, after: int) -> bool:
        return any(bool((kept[before][key] != value).any()) for key, value in kept[after].items())

    return {
        "scale": scaler.get_scale(),
        "moved": {f"{step}": moved(step, step + 1) for step in (1, 2, 3)},
        "rows": list(run.metrics()),
        "health": run.result()["health"],
        "result": {key: run.result()[key] for key in ("status", "steps")},
        "poisoned": name,
    }


@scenario
def doctor() -> Any:
    """What `workbench doctor` says of this machine."""
    from workbench.commands.doctor import examine_machine

    return {finding["name"]: finding for finding in examine_machine()["findings"]}


@scenario
def kernels() -> Any:
    """The norms, rotations and gates in torch beside Unsloth's own, in Triton's interpreter: outputs and gradients."""
    from types import SimpleNamespace

    import torch

    torch.manual_seed(0)

    def differ(name: str, plain: Callable[..., Any], *shapes: tuple[int, ...], call: Callable[..., Any]) -> float:
        both = []
        for function in (THEIRS[name], plain):
            torch.manual_seed(1)
            inputs = [torch.randn(shape, requires_grad=True) for shape in shapes]
            out = call(function, *inputs)
            out = out if isinstance(out, tuple) else (out,)
            if out[0].requires_grad:
                torch.manual_seed(2)
                sum((each * torch.randn(each.shape)).sum() for each in out).backward()
            both.append([*out, *(value.grad for value in inputs if value.grad is not None)])
        return max(float((a - b).abs().max()) for a, b in zip(*both, strict=True))

    norm = SimpleNamespace(weight=torch.rand(32), variance_epsilon=1e-6)
    angles = torch.arange(9)[:, None] * torch.logspace(0, -3, 4)[None]
    cos, sin = (torch.cat([wave, wave], dim=-1) for wave in (angles.cos(), angles.sin()))
    places = torch.tensor([[0, 0, 1, 2, 3], [4, 5, 6, 7, 8]])
    return {
        "norm": differ("fast_rms_layernorm", emulated_gpu.plain_norm, (2, 3, 32), call=lambda f, X: f(norm, X)),
        "rotation": differ(
            "fast_rope_embedding", emulated_gpu.plain_rotation, (2, 3, 5, 8), (2, 1, 5, 8),
            call=lambda f, Q, K: f(Q * 1, K * 1, cos, sin, places),
        ),
        "gate": differ(
            "swiglu_fg_kernel", emulated_gpu.plain_gate, (1, 3, 16), (1, 3, 16), call=lambda f, e, g: f(e.detach(), g.detach())
        ),
        "gate backward": differ(
            "swiglu_DWf_DW_dfg_kernel", emulated_gpu.plain_gate_backward, (3, 16), (3, 16), (3, 16),
            call=lambda f, DW, e, g: f(DW.detach().clone(), e.detach().clone(), g.detach().clone()),
        ),
    }  # fmt: skip


# --- the process ------------------------------------------------------------------------------------------------------


def main(names: list[str]) -> None:
    global THEIRS
    emulated_gpu.pretend(emulated_gpu.CARDS[CARD])
    from workbench.training.policy import trainer_classes

    _, trainer_class = trainer_classes(BACKEND)
    emulated_gpu.after_import(BACKEND)
    THEIRS = emulated_gpu.plain_kernels() if BACKEND == "unsloth" else {}
    watch(trainer_class)
    write(
        "facts",
        {"found": {"trainer": f"{trainer_class.__module__}.{trainer_class.__name__}"}},
    )
    for name in names:
        try:
            found = {"found": SCENARIOS[name]()}
        except BaseException:
            found = {"error": traceback.format_exc()}
        write(name, found)
        print(f"--- {name}", flush=True)


def write(name: str, content: Any) -> None:
    (FOLDER / f"{name}.json").write_text(json.dumps(content, default=str), encoding="utf-8")


if __name__ == "__main__":
    CARD, BACKEND, FOLDER = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    main(sys.argv[4:])
