"""What the libraries say of settings is kept, and no change of the machine leaves a wrong plan."""

from __future__ import annotations

import datetime
import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import workbench as wb
from workbench.commands.demo import settings_of
from workbench.recipe import Recipe
from workbench.tasks.loading import EMBEDDED
from workbench.tiny import MODEL_DIR
from workbench.training.plan import kept, settings
from workbench.training.plan.measuring import tokenizer_files
from workbench.training.plan.settings.in_force import defaults_of, plain_setting
from workbench.training.plan.settings.values import SHOWN
from workbench.training.policy import trainer_classes

TINY = {"task": "arithmetic", "policy": {"name": "tiny"}}
FORGED = 0.7  # no version's epsilon


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache, a folder of installed packages, and an imported one beside them; nothing is asked anywhere else."""
    trainer_classes()  # unsloth first
    monkeypatch.delenv(kept.OFF, raising=False)
    monkeypatch.setattr(kept, "cache_folder", lambda: tmp_path / "cache")  # a checkpoint may be in the user's own
    packages = tmp_path / "packages"
    (packages / "trl_tiny").mkdir(parents=True)
    (packages / "trl_tiny" / "__init__.py").write_text("EPSILON = 0.2\n")
    (packages / "trl-1.14.2.dist-info").mkdir()
    os.utime(packages / "trl_tiny" / "__init__.py", (10**9, 10**9))  # long ago
    monkeypatch.setattr(kept.site, "getsitepackages", lambda: [str(packages)])
    monkeypatch.syspath_prepend(str(packages))
    importlib.import_module("trl_tiny")
    yield tmp_path / "cache" / "settings"
    del sys.modules["trl_tiny"]


@pytest.fixture
def asked(monkeypatch) -> list[str]:
    """Backends whose libraries were asked, in order."""
    backends = []

    def watched(backend):
        backends.append(backend)
        return trainer_classes(backend)

    monkeypatch.setattr(kept, "trainer_classes", watched)
    return backends


def told(recipe: object = TINY, **how) -> str:
    with kept.answering():
        return str(wb.plan(Recipe.of(recipe) if isinstance(recipe, dict) else recipe, **how))


def only(folder: Path) -> Path:
    [file] = folder.glob("*.json")
    return file


def rewritten(file: Path, change) -> None:
    """A kept file with other content, and the right sum of it."""
    _, _, body = file.read_text().partition("\n")
    body = json.dumps(change(*json.loads(body)))
    file.write_text(f"{kept._sum(body)}\n{body}")


def forged(known: dict, states: dict) -> list:
    for name, answer in known.items():
        if name.startswith("_facts"):
            answer["own"]["epsilon"] = answer["stock"]["epsilon"] = FORGED
    return [known, states]


# -- the same plan ---------------------------------------------------------------------------------

ONE_STEP = {"max_steps": 1, "num_generations": 4, "per_device_train_batch_size": 8}
RECIPES = {
    **{f"preset {name}": name for name in ("cpu", "t4", "gpu_24gb", "gpu_80gb")},
    **{
        f"task {name}": {"task": name, "policy": {"name": "tiny_turns", "max_seq_length": 2048}, "grpo": ONE_STEP}
        for name in EMBEDDED
        if name != "gsm8k"  # which needs the hub, and is that of a preset
    },
    "plain transformers": {**TINY, "policy": {"name": "tiny", "backend": "transformers"}},
    "smollm2": {"policy": {"name": "smollm2"}},
    "stages": {**TINY, "stages": [{"name": "a", "steps": 2}, {"name": "b", "steps": 3, "grpo": {"beta": 0.1}}]},
}


@pytest.mark.parametrize("vram_gb", [None, 16])
@pytest.mark.parametrize("name", RECIPES)
def test_a_plan_is_the_same_to_the_byte_cold_warm_and_without_a_cache(cache, asked, name, vram_gb):
    recipe = RECIPES[name]
    try:
        if name == "smollm2":
            demo = settings_of(name)["03_train"]
            policy = {"name": name, **demo["loading"]}
            recipe = {"task": "reviews", "policy": policy, "grpo": demo["grpo"], "eval_every": demo["eval_every"]}
        off = str(wb.plan(Recipe.of(recipe) if isinstance(recipe, dict) else recipe, vram_gb=vram_gb))
    except wb.errors.WorkbenchError as error:  # a task or a policy whose extra is not installed
        pytest.skip(str(error))
    assert asked == []
    assert told(recipe, vram_gb=vram_gb) == off
    assert asked
    asked.clear()
    assert told(recipe, vram_gb=vram_gb) == off
    assert asked == []


VALUES = {
    "learning_rate": 3e-4, "beta": 0.01, "temperature": 0.7, "max_steps": 7, "max_completion_length": 64,
    "num_iterations": 2, "epsilon": 0.1, "epsilon_high": 0.3, "loss_type": "dr_grpo", "scale_rewards": "batch",
    "weight_decay": 0.1, "max_grad_norm": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 3, "repetition_penalty": 1.1,
    "mask_truncated_completions": True, "importance_sampling_level": "sequence",
}  # fmt: skip
LOOKED_AT = {
    "num_generations": 4, "per_device_train_batch_size": 16, "gradient_accumulation_steps": 2, "optim": "adamw_8bit",
    "lr_scheduler_type": "cosine", "logging_steps": 2, "save_steps": 5, "warmup_steps": 3, "steps_per_generation": 2,
    "gradient_checkpointing": True, "bf16": False, "report_to": "tensorboard",
}  # fmt: skip


def test_another_value_gives_its_own_plan_and_the_libraries_are_asked_where_they_look_at_it(cache, asked):
    first = told()
    plans = {}
    for name, value in {**VALUES, **LOOKED_AT}.items():
        recipe = {**TINY, "grpo": {name: value}}
        plans[name] = str(wb.plan(Recipe.of(recipe)))
        asked.clear()
        assert told(recipe) == plans[name] != first, name
        assert bool(asked) == (name in LOOKED_AT), name
    asked.clear()
    for name, value in LOOKED_AT.items():
        assert told({**TINY, "grpo": {name: value}}) == plans[name], name
    assert told() == first
    assert asked == []


def test_what_a_library_warns_of_is_said_each_time(cache, asked):
    recipe = {**TINY, "grpo": {"use_transformers_paged": True}}
    off = str(wb.plan(Recipe.of(recipe)))
    assert " warns: " in off
    assert [told(recipe), told(recipe)] == [off, off]


def test_what_a_library_refuses_is_refused_each_time(cache):
    for _ in range(2):
        with pytest.raises(wb.errors.RecipeError, match="dataloader_prefetch_factor"):
            told({**TINY, "grpo": {"dataloader_prefetch_factor": 2}})


def own_config() -> type:
    """As the class that Unsloth generates for a GPU: defaults and changes that only its __init__ knows."""

    class OwnConfig(trainer_classes()[0]):
        def __init__(self, learning_rate=5e-5, loss_type=None, scale_rewards="group", epsilon_high=None, **others):
            if loss_type == "dapo":
                epsilon_high = 0.28
            if learning_rate > 1:
                learning_rate = 1
            super().__init__(
                learning_rate=learning_rate,
                loss_type=loss_type or "dapo",
                scale_rewards=scale_rewards,
                epsilon_high=epsilon_high,
                **others,
            )

    return OwnConfig


@pytest.mark.parametrize("made", [lambda: trainer_classes()[0], own_config], ids=["TRL's", "as Unsloth's"])
def test_a_stand_in_has_the_fields_kinds_defaults_and_values_of_its_class(cache, asked, monkeypatch, made, tmp_path):
    config_class = made()
    monkeypatch.setattr(kept, "trainer_classes", lambda backend: asked.append(backend) or (config_class, None))
    given = [{}, {"loss_type": "dapo"}, {"learning_rate": 2.0}, {"learning_rate": 0.5}, {"num_generations": 4}]
    for again in (False, True):
        asked.clear()
        with kept.answering() as answers:
            stand_in = answers.config_class("unsloth")
            assert settings.field_names(stand_in) == settings.field_names(config_class)
            assert settings.field_kinds(stand_in) == settings.field_kinds(config_class)
            for own, other in zip(stand_in.__mro__[:2], (config_class, trainer_classes()[0]), strict=True):
                assert plain(defaults_of(own)).items() <= plain(defaults_of(other)).items()
            for one in given:
                real = config_class(**one, output_dir=str(tmp_path))
                stood_in = stand_in(**one, output_dir=str(tmp_path))
                for name in [*SHOWN, *one]:
                    assert plain_setting(name, getattr(stood_in, name)) == plain_setting(name, getattr(real, name)), name
        assert bool(asked) is not again


def plain(defaults: dict) -> dict:
    return {name: str(plain_setting(name, value)) for name, value in defaults.items()}


# -- what is not as it was counts as nothing -------------------------------------------------------


def package(cache: Path) -> Path:
    return cache.parents[1] / "packages"


def edited(cache: Path, _: object) -> None:
    (package(cache) / "trl_tiny" / "__init__.py").write_text("EPSILON = 0.3\n")


def bit_flipped(cache: Path, _: object) -> None:
    content = bytearray(only(cache).read_bytes())
    content[len(content) // 2] ^= 1
    only(cache).write_bytes(content)


CHANGES = {
    "another version": lambda cache, patch: os.rename(
        package(cache) / "trl-1.14.2.dist-info", package(cache) / "trl-1.15.0.dist-info"
    ),
    "a package removed": lambda cache, patch: (package(cache) / "trl-1.14.2.dist-info").rmdir(),
    "a package added": lambda cache, patch: (package(cache) / "wandb-1.0.dist-info").mkdir(),
    "a library before the others": lambda cache, patch: (package(cache) / "liger_kernel.py").touch(),
    "an edited package": edited,
    "a package touched": lambda cache, patch: os.utime(package(cache) / "trl_tiny" / "__init__.py"),
    "a file removed": lambda cache, patch: (package(cache) / "trl_tiny" / "__init__.py").unlink(),
    "a variable of Unsloth": lambda cache, patch: patch.setenv("UNSLOTH_COMPILE_DISABLE", "1"),
    "a variable of accelerate": lambda cache, patch: patch.setenv("ACCELERATE_MIXED_PRECISION", "fp16"),
    "a variable taken away": lambda cache, patch: patch.delenv("OMP_NUM_THREADS"),
    "another Python": lambda cache, patch: patch.setattr(sys, "version", f"{sys.version} again"),
    "another processor": lambda cache, patch: patch.setattr(kept.platform, "machine", lambda: "riscv64"),
    "a GPU": lambda cache, patch: patch.setattr(kept, "GPU_DEVICES", [sys.executable]),
    "another schema": lambda cache, patch: patch.setattr(kept, "SCHEMA", kept.SCHEMA + 1),
    "a damaged file": bit_flipped,
    "a truncated file": lambda cache, patch: os.truncate(only(cache), only(cache).stat().st_size // 2),
    "an empty file": lambda cache, patch: os.truncate(only(cache), 0),
    "a binary file": lambda cache, patch: only(cache).write_bytes(bytes(range(256))),
    "a file of another making": lambda cache, patch: rewritten(only(cache), lambda known, states: {"epsilon": FORGED}),
    "answers of another kind": lambda cache, patch: rewritten(
        only(cache), lambda known, states: [dict.fromkeys(known, "epsilon"), states]
    ),
    "a folder in its place": lambda cache, patch: (only(cache).unlink(), only_folder(cache)),
}  # fmt: skip


def only_folder(cache: Path) -> None:
    shutil.rmtree(cache)
    cache.write_text("a file where the folder was")


@pytest.mark.parametrize("change", CHANGES)
def test_a_kept_answer_is_used_while_nothing_changed_and_never_after(cache, monkeypatch, change):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    right = told()
    rewritten(only(cache), forged)
    wrong = told()
    assert wrong != right  # what is kept is used
    assert f"{FORGED}" in next(line for line in wrong.splitlines() if line.startswith("epsilon "))
    importlib.invalidate_caches()
    CHANGES[change](cache, monkeypatch)
    importlib.invalidate_caches()
    assert told() == right


def test_another_backend_is_asked_itself(cache, asked):
    told()
    rewritten(only(cache), forged)
    asked.clear()
    recipe = RECIPES["plain transformers"]
    assert told(recipe) == str(wb.plan(Recipe.of(recipe)))
    assert set(asked) == {"transformers"}
    assert len([*cache.glob("*.json")]) == 2


def test_a_package_that_is_changed_while_it_is_imported_is_not_kept(cache):
    os.utime(package(cache) / "trl_tiny" / "__init__.py", (4 * 10**9, 4 * 10**9))
    told()
    assert not cache.exists()


def test_only_the_last_states_stay(cache, monkeypatch):
    monkeypatch.setattr(kept, "MOST_STATES", 2)
    for number in range(4):
        monkeypatch.setenv("UNSLOTH_OF_A_TEST", str(number))
        told()
    assert len([*cache.glob("*.json")]) == 2


WRITER = """
import sys
from pathlib import Path
from workbench.training.plan.kept import Answers
for number in range(200):
    answers = Answers(False)
    answers.file, answers.known, answers.new = Path(sys.argv[1]), {"who": sys.argv[2], "all": [number] * 5000}, True
    answers.began_s += 60
    answers.save()
"""


def test_an_answer_that_is_too_long_is_given_and_not_kept(cache, monkeypatch):
    whole = told()
    assert any(len(json.dumps(answer)) > 5_000 for answer in json.loads(only(cache).read_text().partition("\n")[2])[0].values())
    only(cache).unlink()
    monkeypatch.setattr(kept, "MOST_BYTES", 5_000)
    assert told() == whole
    answers = json.loads(only(cache).read_text().partition("\n")[2])[0]
    assert answers
    assert all(len(json.dumps(answer)) < 6_000 for name, answer in answers.items() if not name.startswith("built"))


def test_two_processes_that_write_at_once_leave_a_whole_file(cache):
    file = cache / "state.json"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(file), who]) for who in "ab"]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        if file.exists():
            known, _ = kept._read(file)
            assert known["all"] == known["all"][:1] * 5000
            seen.add(known["who"])
    assert [writer.returncode for writer in writers] == [0, 0]
    assert seen == {"a", "b"}
    assert [*cache.iterdir()] == [file]


def test_an_edited_tokenizer_is_asked_again(cache, tmp_path):
    folder = tmp_path / "policy"
    shutil.copytree(MODEL_DIR, folder)
    recipe = {**TINY, "policy": {"name": str(folder), "max_seq_length": 512}}
    before = told(recipe)
    template = folder / "chat_template.jinja"
    template.write_text("Mind the gap. " * 20 + template.read_text())
    after = told(recipe)
    assert after == str(wb.plan(Recipe.of(recipe)))
    assert after != before


def test_a_template_that_writes_the_date_is_asked_again_on_another_day(tmp_path):
    folder = tmp_path / "policy"
    shutil.copytree(MODEL_DIR, folder)
    assert "today" not in tokenizer_files(folder)
    template = folder / "chat_template.jinja"
    template.write_text("{{ strftime_now('%d %b %Y') }}" + template.read_text())
    assert tokenizer_files(folder)["today"] == str(datetime.date.today())


def test_a_setting_asks_the_libraries_each_time_and_keeps_nothing(cache, asked, monkeypatch):
    monkeypatch.setenv(kept.OFF, "1")
    assert told() == told()
    assert not cache.exists()


# -- training asks ---------------------------------------------------------------------------------


def test_training_asks_the_libraries_says_where_they_disagree_and_removes_what_was_kept(cache, home):
    recipe = Recipe.of({**TINY, "policy": {"name": "tiny", "load_in_4bit": False}, "grpo": ONE_STEP})
    right = told(recipe)
    rewritten(only(cache), forged)
    assert told(recipe) != right
    run = wb.train(recipe)
    notes = run.manifest()["settings"]["translated"]
    assert [note for note in notes if "WARNING" in note and f"{FORGED}" in note and "epsilon" in note]
    assert run.manifest()["settings"]["in_force"]["epsilon"] == 0.2
    assert told(recipe) == right
    again = wb.train(recipe)
    assert not [note for note in again.manifest()["settings"]["translated"] if "WARNING" in note and "epsilon" in note]


def test_training_compares_what_was_made_of_the_settings_too(cache):
    def another_optimiser(known, states):
        for name, answer in known.items():
            if name.startswith("built"):
                answer["made"]["optim"] = "sgd"
        return [known, states]

    right = told()
    rewritten(only(cache), another_optimiser)
    assert " sgd " in told()
    with kept.answering(ask=True) as answers:
        asked = str(wb.plan(Recipe.of(TINY)))
    assert asked == right == told()
    assert [line for line in answers.differed if "made.optim" in line and "'sgd'" in line]


# -- a process of its own --------------------------------------------------------------------------

COMMAND = """
import sys
sys.argv = ["workbench", "plan", "cpu", "--vram", "16"]
from workbench.commands.cli import main
try:
    main()
finally:
    print(sorted({"torch", "transformers", "trl", "unsloth", "peft", "datasets"} & set(sys.modules)), file=sys.stderr)
"""


def test_a_second_plan_in_another_process_imports_no_library(tmp_path):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    environment.pop(kept.OFF, None)
    cold, warm = (
        subprocess.run([sys.executable, "-c", COMMAND], capture_output=True, text=True, env=environment, check=True)
        for _ in range(2)
    )
    assert "torch" in cold.stderr.splitlines()[-1]
    assert warm.stderr.splitlines()[-1] == "[]"
    assert cold.stdout == warm.stdout == f"{wb.plan('cpu', vram_gb=16)}\n"
