"""Model and adapter folders that carry code. Whatever of it runs leaves a file that bears the folder's name.

`python tests/hostile_models.py FOLDER BACKEND` makes them in FOLDER, loads each in a fork of its own and lets it write a few
tokens, and prints a line of JSON for each: its name, how loading ended, and what was said.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from workbench.tiny import MODEL_DIR

PROMPT = [{"role": "user", "content": "What is 15 + 27?"}]


class Code:
    """What runs `source` when it is unpickled."""

    def __init__(self, source: str) -> None:
        self.source = source

    def __reduce__(self):
        return exec, (self.source,)


class Maker:
    """One folder: what stands in it, and the code that would leave a file in `canaries`."""

    def __init__(self, folder: Path, canaries: Path) -> None:
        self.folder = folder
        self.source = f"open({str(canaries / folder.name)!r}, 'a').write('ran')\n"
        self.pickled = pickle.dumps({"model.norm.weight": Code(self.source), "lm_head.weight": Code(self.source)})

    def put(self, name: str, data: str | bytes) -> None:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        file.write_bytes(data.encode() if isinstance(data, str) else data)

    def code(self, name: str) -> str:
        """A module of classes of every name that a folder may ask for; importing it is enough."""
        kinds = "from transformers import LlamaConfig, LlamaForCausalLM, LlamaTokenizer, PreTrainedTokenizerFast\n"
        kinds += "class EvilConfig(LlamaConfig):\n    model_type = 'evil'\n"
        kinds += "class EvilModel(LlamaForCausalLM):\n    config_class = EvilConfig\n"
        kinds += "class EvilTokenizer(PreTrainedTokenizerFast):\n    pass\nclass EvilProcessor:\n    pass\n"
        self.put(f"{name}.py", self.source + kinds + f"def generate(model, *args, **kwargs):\n    {self.source}")
        return name

    def change(self, name: str, **fields: object) -> None:
        found = json.loads(file.read_text()) if (file := self.folder / name).is_file() else {}
        self.put(name, json.dumps(found | fields))

    def remove(self, *names: str) -> None:
        for name in names:
            (self.folder / name).unlink()

    @property
    def auto_map(self) -> dict[str, str]:
        own = self.code("evil")
        return {"AutoConfig": f"{own}.EvilConfig", "AutoModelForCausalLM": f"{own}.EvilModel", "AutoModel": f"{own}.EvilModel"}


def auto_map_of_a_known_type(made: Maker) -> None:
    made.change("config.json", auto_map=made.auto_map)


def auto_map_of_an_own_type(made: Maker) -> None:
    made.change("config.json", auto_map=made.auto_map, model_type="evil", architectures=["EvilModel"])


def auto_map_that_says_it_is_trusted(made: Maker) -> None:
    trusted = {"auto_map": made.auto_map, "trust_remote_code": True, "_commit_hash": None}
    made.change("config.json", model_type="evil", architectures=["EvilModel"], **trusted)
    made.change("tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.EvilTokenizer"] * 2}, trust_remote_code=True)


def auto_map_of_another_repository(made: Maker) -> None:
    there = {kind: f"evil/evil--{name}" for kind, name in made.auto_map.items()}
    made.change("config.json", auto_map=there, model_type="evil")


def tokenizer_of_its_own(made: Maker) -> None:
    own = made.code("evil")
    names = [f"{own}.EvilTokenizer", f"{own}.EvilTokenizer"]
    made.change("tokenizer_config.json", auto_map={"AutoTokenizer": names}, tokenizer_class="EvilTokenizer")


def tokenizer_beside_a_known_one(made: Maker) -> None:
    own = made.code("evil")
    made.change("tokenizer_config.json", auto_map={"AutoTokenizer": [None, f"{own}.EvilTokenizer"]})


def processor_of_its_own(made: Maker) -> None:
    own = {"auto_map": {"AutoProcessor": f"{made.code('evil')}.EvilProcessor"}, "processor_class": "EvilProcessor"}
    for name in ("processor_config.json", "preprocessor_config.json"):
        made.change(name, **own)


def weights_are_a_pickle(made: Maker) -> None:
    made.remove("model.safetensors")
    made.put("pytorch_model.bin", made.pickled)


def weights_are_a_zip_with_a_pickle(made: Maker) -> None:
    import torch

    made.remove("model.safetensors")
    torch.save({"lm_head.weight": Code(made.source)}, made.folder / "pytorch_model.bin")


def a_pickle_beside_the_weights(made: Maker) -> None:
    for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth", "tf_model.h5"):
        made.put(name, made.pickled)


def a_pickle_called_safetensors(made: Maker) -> None:
    made.put("model.safetensors", made.pickled)


def an_index_that_leads_outside(made: Maker) -> None:
    made.remove("model.safetensors")
    outside = Maker(made.folder, made.folder.parent)
    outside.source = made.source
    outside.put("../outside.bin", made.pickled)
    for name in ("model.safetensors", "pytorch_model.bin"):
        weights = {"lm_head.weight": "../outside.bin", "model.norm.weight": "../../../../../outside.bin"}
        made.put(f"{name}.index.json", json.dumps({"metadata": {"total_size": 1}, "weight_map": weights}))


def shards_that_are_pickles(made: Maker) -> None:
    made.remove("model.safetensors")
    made.put("pytorch_model-00001-of-00001.bin", made.pickled)
    weights = {"lm_head.weight": "pytorch_model-00001-of-00001.bin"}
    made.put("pytorch_model.bin.index.json", json.dumps({"metadata": {}, "weight_map": weights}))


def a_link_to_a_pickle(made: Maker) -> None:
    made.remove("model.safetensors")
    made.put("weights.pkl", made.pickled)
    (made.folder / "model.safetensors").symlink_to(made.folder / "weights.pkl")


_TEMPLATES = """
{{% set found = namespace(n=0) %}}
{{{{ cycler.__init__.__globals__.os.system({0!r}) }}}}
{{{{ ''.__class__.__mro__[1].__subclasses__() }}}}
{{{{ self.__init__.__globals__.__builtins__.exec({1!r}) }}}}
{{{{ raise_exception.__globals__['__builtins__']['exec']({1!r}) }}}}
{{{{ strftime_now.__globals__['__builtins__']['exec']({1!r}) }}}}
{{% for message in messages %}}{{{{ message['content'] }}}}{{% endfor %}}
"""


def templates_that_reach_for_the_system(made: Maker) -> None:
    for line in range(2, 7):  # each alone is enough
        lines = _TEMPLATES.format(f"echo ran > {made.source.split(chr(39))[1]}", made.source).splitlines()
        made.put(f"template-{line}.jinja", "\n".join([lines[line], lines[-1]]))
    made.put("chat_template.jinja", (made.folder / "template-2.jinja").read_text())


def a_generate_of_its_own(made: Maker) -> None:
    made.code("custom_generate/generate")
    made.put("custom_generate/requirements.txt", "")


def a_generate_that_the_configuration_names(made: Maker) -> None:
    made.code("custom_generate/generate")
    named = {"custom_generate": str(made.folder), "trust_remote_code": True}
    made.change("generation_config.json", **named)
    made.change("config.json", **named)


def types_that_are_expressions(made: Maker) -> None:
    said = f"__import__('os').system('echo ran > {made.source.split(chr(39))[1]}')"
    made.change("config.json", dtype=said, torch_dtype=said, hidden_act=said)


def classes_that_are_functions(made: Maker) -> None:
    made.change("config.json", architectures=["os.system"], attn_implementation="evil/kernel:run", _attn_implementation="evil/k")
    made.change("tokenizer_config.json", tokenizer_class="os.system")


def a_quantization_of_its_own(made: Maker) -> None:
    made.code("evil")
    own = {"quant_method": "evil.run", "modules_to_not_convert": ["evil"]}
    made.change("config.json", quantization_config=own)


def an_adapter_among_the_weights(made: Maker) -> None:
    made.change("adapter_config.json", peft_type="LORA", base_model_name_or_path=str(made.folder), r=4, target_modules=["q_proj"])
    made.put("adapter_model.bin", made.pickled)


def a_configuration_that_is_cut(made: Maker) -> None:
    made.put("config.json", (made.folder / "config.json").read_bytes()[:100])


def a_tokenizer_that_is_cut(made: Maker) -> None:
    made.put("tokenizer.json", (made.folder / "tokenizer.json").read_bytes()[:1000])


def weights_that_are_cut(made: Maker) -> None:
    made.put("model.safetensors", (made.folder / "model.safetensors").read_bytes()[:5000])


def no_weights(made: Maker) -> None:
    made.remove("model.safetensors")


def adapter_pickle(made: Maker) -> None:
    made.remove("adapter_model.safetensors")
    made.put("adapter_model.bin", made.pickled)


def adapter_pickle_beside(made: Maker) -> None:
    for name in ("adapter_model.bin", "training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
        made.put(name, made.pickled)


def adapter_pickle_called_safetensors(made: Maker) -> None:
    made.put("adapter_model.safetensors", made.pickled)


def adapter_link_to_a_pickle(made: Maker) -> None:
    made.remove("adapter_model.safetensors")
    made.put("weights.pkl", made.pickled)
    (made.folder / "adapter_model.bin").symlink_to(made.folder / "weights.pkl")


def adapter_weights_cut(made: Maker) -> None:
    made.put("adapter_model.safetensors", (made.folder / "adapter_model.safetensors").read_bytes()[:3000])


def adapter_without_weights(made: Maker) -> None:
    made.remove("adapter_model.safetensors")


def adapter_configuration_cut(made: Maker) -> None:
    made.put("adapter_config.json", '{"peft_type": "LORA", "r":')


def adapter_configuration_empty(made: Maker) -> None:
    made.put("adapter_config.json", "[]")


def adapter_of_no_known_type(made: Maker) -> None:
    made.code("evil")
    made.change("adapter_config.json", peft_type="evil.EvilModel", task_type="os.system")


def adapter_of_another_library(made: Maker) -> None:
    own = made.code("evil")
    made.change("adapter_config.json", auto_mapping={"base_model_class": "EvilModel", "parent_library": own}, task_type=None)


def adapter_with_a_core_of_its_own(made: Maker) -> None:
    made.change("adapter_config.json", megatron_core=made.code("evil"), megatron_config={"tensor_model_parallel_size": 1})


def adapter_of_another_base(made: Maker) -> None:
    made.change("config.json", model_type="evil", auto_map=made.auto_map)
    made.change("adapter_config.json", base_model_name_or_path=str(made.folder), revision="evil")


def adapter_whose_prompt_has_a_tokenizer(made: Maker) -> None:
    tokenizer_of_its_own(made)
    asked = {"tokenizer_name_or_path": str(made.folder), "tokenizer_kwargs": {"trust_remote_code": True}}
    prompt = {"prompt_tuning_init": "TEXT", "prompt_tuning_init_text": "a", "num_virtual_tokens": 2, "inference_mode": False}
    made.put("adapter_config.json", json.dumps({"peft_type": "PROMPT_TUNING", "task_type": "CAUSAL_LM", **prompt, **asked}))


def adapter_whose_prompt_is_a_pickle(made: Maker) -> None:
    made.put("start.bin", made.pickled)
    asked = {"prompt_tuning_init": "ONLY_SOURCE_SHARED", "prompt_tuning_init_state_dict_path": str(made.folder / "start.bin")}
    own = {"peft_type": "MULTITASK_PROMPT_TUNING", "task_type": "CAUSAL_LM", "num_virtual_tokens": 2, **asked}
    made.put("adapter_config.json", json.dumps(own))


def adapter_of_adapters(made: Maker) -> None:
    made.put("other/adapter_model.bin", made.pickled)
    made.put("other/adapter_config.json", (made.folder / "adapter_config.json").read_bytes())
    own = {"peft_type": "XLORA", "task_type": "CAUSAL_LM", "hidden_size": 128, "adapters": {"0": str(made.folder / "other")}}
    made.put("adapter_config.json", json.dumps(own))


def adapter_that_is_tuned_by_a_cache(made: Maker) -> None:
    made.put("cache.pt", made.pickled)
    cache = {"cache_file": str(made.folder / "cache.pt"), "covariance_file": str(made.folder / "cache.pt")}
    made.change("adapter_config.json", init_lora_weights="corda", corda_config=cache)


ADAPTERS = [each for name, each in list(globals().items()) if name.startswith("adapter_")]
MODELS = [
    auto_map_of_a_known_type, auto_map_of_an_own_type, auto_map_that_says_it_is_trusted, auto_map_of_another_repository,
    tokenizer_of_its_own, tokenizer_beside_a_known_one, processor_of_its_own, weights_are_a_pickle,
    weights_are_a_zip_with_a_pickle, a_pickle_beside_the_weights, a_pickle_called_safetensors, an_index_that_leads_outside,
    shards_that_are_pickles, a_link_to_a_pickle, templates_that_reach_for_the_system, a_generate_of_its_own,
    a_generate_that_the_configuration_names, types_that_are_expressions, classes_that_are_functions, a_quantization_of_its_own,
    an_adapter_among_the_weights, a_configuration_that_is_cut, a_tokenizer_that_is_cut, weights_that_are_cut, no_weights,
]  # fmt: skip


def in_a_fork(name: str, load: Callable[[], object]) -> dict[str, str]:
    """How `load` ended there: "loaded", a `WorkbenchError`'s name, or "raw: ..." and what was said."""
    from workbench.base.errors import WorkbenchError

    ours, theirs = os.pipe()
    if not (child := os.fork()):
        try:
            load()
            found = {"ended": "loaded", "said": ""}
        except WorkbenchError as error:
            found = {"ended": type(error).__name__, "said": str(error)}
        except BaseException as error:
            last = traceback.extract_tb(error.__traceback__)
            own = [frame for frame in last if "/workbench/" in frame.filename]
            found = {"ended": f"raw: {type(error).__name__} at {[(f.filename, f.lineno) for f in own[-1:]]}", "said": str(error)}
        os.write(theirs, json.dumps({"name": name, **found}).encode()[:60_000])
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return json.loads(said or json.dumps({"name": name, "ended": "raw: the process ended", "said": ""}))


def main(home: Path, backend: str) -> None:
    from workbench.data.template import template_card
    from workbench.exporting.merging import copy_adapter, write_merged
    from workbench.training.plan.loading import load_tokenizer
    from workbench.training.policy import load_policy
    from workbench.training.resuming import save_adapter
    from workbench.training.sampling import sample

    canaries = home / "canaries"
    canaries.mkdir()
    policy = load_policy("tiny", backend=backend, load_in_4bit=False)
    saved = save_adapter(policy.model, policy.tokenizer, home / "saved")

    def written(source: object, **how: object) -> None:
        loaded = load_policy(source, backend=backend, load_in_4bit=False, **how)
        sample(loaded, [PROMPT], max_completion_length=2)

    def rendered(folder: Path) -> None:
        tokenizer, refused = load_tokenizer(folder), []
        for template in sorted(folder.glob("template-*.jinja")):
            tokenizer.chat_template = template.read_text()
            try:
                template_card(tokenizer, PROMPT)
            except Exception as error:
                refused.append(f"{type(error).__name__}")
        assert refused == [] or len(refused) == 5, refused

    def trusted(folder: Path) -> None:
        from transformers import AutoModelForCausalLM

        AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)

    def unpickled(folder: Path) -> None:
        import torch

        torch.load(folder / "pytorch_model.bin", weights_only=False)

    found = []

    def tried(name: str, load: Callable[..., object], *args: object, **how: object) -> None:
        found.append(in_a_fork(name, lambda: load(*args, **how)))

    for make in MODELS:
        folder = home / "models" / make.__name__
        shutil.copytree(MODEL_DIR, folder)
        make(Maker(folder, canaries))
        tried(f"model {make.__name__}", written, folder)
        tried(f"tokenizer {make.__name__}", rendered, folder)
    for make in ADAPTERS:
        folder = home / "adapters" / make.__name__
        shutil.copytree(saved, folder)
        make(Maker(folder, canaries))
        tried(f"adapter {make.__name__}", written, "tiny", adapter=folder)
        if backend == "transformers":  # the same for both
            copied = home / "copied" / make.__name__
            tried(f"copied {make.__name__}", copy_adapter, folder, copied)
            tried(f"merged {make.__name__}", write_merged, "tiny", folder, home / "merged" / make.__name__)
    # Told to, both run: the folders do carry code.
    live = [
        in_a_fork("trusted", lambda: trusted(_live(home / "live" / "trusted", canaries, auto_map_of_an_own_type))),
        in_a_fork("unpickled", lambda: unpickled(_live(home / "live" / "unpickled", canaries, weights_are_a_pickle))),
    ]
    print("\n" + json.dumps({"found": found, "live": live, "ran": sorted(os.listdir(canaries))}))


def _live(folder: Path, canaries: Path, make: Callable[[Maker], None]) -> Path:
    shutil.copytree(MODEL_DIR, folder)
    make(Maker(folder, canaries))
    return folder


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
