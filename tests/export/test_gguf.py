"""GGUF: the tools are found or named, and llama.cpp reads a file as transformers reads what it was made of."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from sabotage import SABOTAGES, WORDS
from small_models import artefact, load, make_adapter, make_base, make_run, merge
from spoiled_gguf import spoil

from workbench.base.errors import ExportError
from workbench.commands import doctor
from workbench.data.rendering import prompt_text
from workbench.exporting import gguf
from workbench.exporting.weights import check_weights
from workbench.tiny import MODEL_DIR
from workbench.tiny.task import task as arithmetic
from workbench.training.plan.loading import load_tokenizer

SUM = [{"role": "user", "content": "What is 15 + 27?"}]
COMPLETION = "<reasoning>\n5+7=12,  carry\t1 🦙\n</reasoning>\n<answer>\n42\n</answer>"


# --- tools ------------------------------------------------------------------------------------------------------------


def test_without_the_library_the_command_that_installs_it_is_named_before_anything_is_merged(monkeypatch):
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(ExportError, match="llama-cpp-python") as caught:
        gguf.check_tools()
    assert caught.value.remedy == gguf.INSTALL
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    works, found, remedy = doctor._gguf()
    assert (works, found) == (False, "llama-cpp-python is not installed")
    assert gguf.INSTALL in remedy


def test_a_checkout_is_used_if_it_is_one(monkeypatch, tmp_path):
    monkeypatch.setenv("LLAMA_CPP", str(tmp_path))
    for name in ("README", "convert_hf_to_gguf.py"):
        (tmp_path / name).touch()
        with pytest.raises(ExportError, match=r"LLAMA_CPP=.*no convert_hf_to_gguf\.py with its gguf-py"):
            gguf.converter()
    (tmp_path / "gguf-py" / "gguf").mkdir(parents=True)
    assert gguf.converter() == tmp_path


def test_only_the_converter_is_unpacked_of_the_source_package(monkeypatch, tmp_path):
    top = "llama_cpp_python-0.3.36/vendor/llama.cpp"
    names = [
        f"{top}/convert_hf_to_gguf.py", f"{top}/conversion/base.py", f"{top}/gguf-py/gguf/__init__.py", f"{top}/LICENSE",
        f"{top}/src/llama.cpp", "llama_cpp_python-0.3.36/.git/modules/vendor/llama.cpp/config",
    ]  # fmt: skip

    def download(command, **_):
        assert "llama-cpp-python==0.3.36" in command
        with tarfile.open(Path(command[-1]) / "llama_cpp_python-0.3.36.tar.gz", "w:gz") as tar:
            for name in names:
                tar.addfile(tarfile.TarInfo(name), io.BytesIO())

    monkeypatch.setattr(gguf, "_version", lambda: "0.3.36")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("LLAMA_CPP", raising=False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setattr(subprocess, "run", download)
    assert gguf.converter() is None
    folder = gguf.fetch()
    assert gguf.converter() == folder == tmp_path / "grpo-workbench" / "llama.cpp-0.3.36"
    files = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
    assert files == ["LICENSE", "conversion/base.py", "convert_hf_to_gguf.py", "gguf-py/gguf/__init__.py"]
    # One that leaves the folder is refused, and nothing of it stays.
    shutil.rmtree(tmp_path / "grpo-workbench")
    names.append(f"{top}/gguf-py/../../../escaped")
    with pytest.raises(tarfile.OutsideDestinationError):
        gguf.fetch()
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]


def test_a_download_that_fails_says_why(monkeypatch, tmp_path):
    def fail(command, **_):
        raise subprocess.CalledProcessError(1, command, stderr="WARNING: one\nERROR: No matching distribution found\n")

    monkeypatch.setattr(gguf, "_version", lambda: "0.3.36")
    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(ExportError, match="No matching distribution found") as caught:
        gguf.fetch()
    assert "LLAMA_CPP" in caught.value.remedy


def test_special_tokens_are_written_into_a_file_that_is_there(tmp_path, capfd):
    library = pytest.importorskip("gguf")
    writer = library.GGUFWriter(file := tmp_path / "a.gguf", "llama")
    writer.add_eos_token_id(2)
    writer.add_tensor("x.weight", np.arange(64, dtype=np.float32).reshape(2, 32))
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        write()
    gguf.add_ids(tmp_path, file, {})
    gguf.add_ids(tmp_path, file, {"eom": 1, "eot": 5})
    reader = library.GGUFReader(file)
    ids = [reader.get_field(f"tokenizer.ggml.{name}_token_id").contents() for name in ("eos", "eom", "eot")]
    assert (ids, reader.tensors[0].data.sum()) == ([2, 1, 5], 2016.0)
    assert list(tmp_path.iterdir()) == [file]
    assert capfd.readouterr() == ("", "")


# --- files, through llama.cpp -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llama():
    """These tests need llama-cpp-python; where REQUIRE_EXTRAS is set, one that is skipped would hide a failure."""
    if importlib.util.find_spec("llama_cpp") is None and not os.environ.get("REQUIRE_EXTRAS"):
        pytest.skip("llama-cpp-python is not installed: uv sync --extra gguf --inexact")
    gguf.check_tools()


@pytest.fixture(scope="module")
def f16(llama, tmp_path_factory):
    out = tmp_path_factory.mktemp("gguf") / "tiny-F16.gguf"
    gguf.convert(MODEL_DIR, out)
    return out


@pytest.fixture(scope="module")
def original():
    return load(MODEL_DIR), load_tokenizer("tiny")


@pytest.fixture(scope="module")
def rows():
    found = arithmetic(100, 974)
    return [*found.held_out, *found.rows][:1000]


def log_probabilities(model, prompt, completion):
    import torch

    with torch.inference_mode():
        logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1].double()
    return torch.log_softmax(logits, -1)[range(len(completion)), completion].numpy()


def greedy(model, prompt, count=64):
    import torch

    ids = torch.tensor([prompt])
    with torch.inference_mode():
        found = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False,
                               max_new_tokens=count, pad_token_id=3)  # fmt: skip
    return found[0, len(prompt) :].tolist()


@pytest.mark.slow
def test_token_ids_are_those_of_training(f16, original, rows, tmp_path):
    _, tokenizer = original
    reader = gguf.Gguf(f16)
    texts = [prompt_text(row["prompt"], tokenizer) for row in rows]
    assert len(texts) == 1000
    theirs = tokenizer(texts, add_special_tokens=False)["input_ids"]
    assert [reader.render(row["prompt"]) for row in rows] == texts
    assert [reader.prompt_ids(row["prompt"]) for row in rows] == theirs
    for text in (COMPLETION, "", " two  blanks ", "</s><|user|>", "é\u200d🚀\n\n\n"):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert reader.ids(text) == reader.prompt_ids(text) == ids
        assert reader.decode(ids) == tokenizer.decode(ids, skip_special_tokens=True)
    assert (reader.eos, reader.bos) == (tokenizer.eos_token_id, tokenizer.bos_token_id)
    reader.close()


@pytest.mark.slow
def test_it_writes_what_the_original_writes(f16, original, rows, capfd):
    model, _ = original
    reader, again = gguf.Gguf(f16), gguf.Gguf(f16)
    for row in rows[:4]:
        prompt = reader.prompt_ids(row["prompt"])
        completion = greedy(model, prompt)
        assert reader.write(prompt, 64) == again.write(prompt, 64) == completion
        assert reader.write(prompt, 3) == completion[:3]
        found = reader.logprobs(prompt, completion)
        assert found == again.logprobs(prompt, completion)
        assert np.abs(found - log_probabilities(model, prompt, completion)).max() < 2e-3
    assert capfd.readouterr() == ("", "")
    # Where there is too little room for a prompt and its completion, there is more.
    small = gguf.Gguf(f16, n_ctx=256)
    long = prompt * 5 + prompt
    assert len(long) > 256
    assert small.write(long, 64) == reader.write(long, 64)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "most"), [("q8_0", 0.05), ("q4_k_m", 0.5)])
def test_quantised_forms_stay_near_and_say_what_they_store_otherwise(f16, rows, tmp_path, kind, most, capfd):
    note = gguf.quantise(f16, tmp_path / "small.gguf", kind)
    assert (tmp_path / "small.gguf").stat().st_size < 0.6 * f16.stat().st_size
    # 128 wide: no multiple of 256, which q4_k blocks are.
    assert note == (
        "" if kind == "q8_0" else "20 tensors as q5_0: rows not a multiple of 256; 2 tensors as q8_0: rows not a multiple of 256"
    )
    whole, small = gguf.Gguf(f16), gguf.Gguf(tmp_path / "small.gguf")
    prompt = whole.prompt_ids(rows[0]["prompt"])
    completion = whole.write(prompt, 64)
    apart = np.abs(np.subtract(whole.logprobs(prompt, completion), small.logprobs(prompt, completion)))
    assert 0 < apart.mean() < most
    assert capfd.readouterr() == ("", "")
    with pytest.raises(ExportError, match=kind):
        gguf.quantise(tmp_path / "none.gguf", tmp_path / "out.gguf", kind)


@pytest.mark.slow
def test_a_tokenizer_without_bos_gets_none(llama, tmp_path):
    folder = shutil.copytree(MODEL_DIR, tmp_path / "model")
    for name, key in (("tokenizer_config.json", "bos_token"), ("config.json", "bos_token_id")):
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(content | {key: None}))
    tokenizer = load_tokenizer(folder)
    assert tokenizer.bos_token_id is None
    gguf.convert(folder, tmp_path / "out.gguf", name="a model's name")
    reader = gguf.Gguf(tmp_path / "out.gguf")
    assert reader.prompt_ids(SUM) == tokenizer(prompt_text(SUM, tokenizer), add_special_tokens=False)["input_ids"]
    assert b"a model's name" in (tmp_path / "out.gguf").read_bytes()


@pytest.mark.slow
def test_nothing_of_the_machine_is_in_the_file_and_another_is_equal_to_the_byte(f16, tmp_path):
    content = f16.read_bytes()
    gguf.convert(MODEL_DIR, tmp_path / f16.name)
    assert (tmp_path / f16.name).read_bytes() == content
    assert b"tiny-F16" in content
    for name in (str(MODEL_DIR), str(f16.parent), str(Path.home()), "README"):
        assert name.encode() not in content
    assert [file.name for file in f16.parent.iterdir()] == ["tiny-F16.gguf"]


@pytest.fixture(scope="module")
def adds_bos(tmp_path_factory):
    """The embedded policy, with a tokenizer that adds BOS to a text."""
    folder = shutil.copytree(MODEL_DIR, tmp_path_factory.mktemp("bos") / "model")
    content = json.loads((folder / "tokenizer.json").read_text())
    bos = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    content["post_processor"]["single"].insert(0, bos)
    content["post_processor"]["special_tokens"] = {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert load_tokenizer(folder)("a")["input_ids"][0] == 1
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("chat", [True, False])
def test_bos_is_added_as_in_training(llama, adds_bos, tmp_path, chat):
    gguf.convert(adds_bos, tmp_path / "out.gguf", chat=chat)
    reader, tokenizer = gguf.Gguf(tmp_path / "out.gguf"), load_tokenizer(adds_bos)
    if chat:
        text = prompt_text(SUM, tokenizer)
        assert reader.prompt_ids(SUM) == tokenizer(text, add_special_tokens=False)["input_ids"]
    else:
        assert reader.prompt_ids("What is 1 + 1?") == tokenizer("What is 1 + 1?")["input_ids"]


@pytest.mark.slow
def test_a_reader_that_nobody_closes_ends_in_silence(f16):
    code = "import sys, pathlib; from workbench.exporting import gguf; reader = gguf.Gguf(pathlib.Path(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", code, f16], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# --- what is wrong with a file is seen --------------------------------------------------------------------------------


@pytest.mark.slow
def test_spoiled_files_are_read_as_they_are(f16, tmp_path):
    good = gguf.Gguf(f16)
    ids = good.prompt_ids(SUM)
    doubled = "{{ bos_token }}" + good.template
    double = gguf.Gguf(spoil(f16, tmp_path / "double.gguf", add_bos_token=True, chat_template=doubled))
    assert double.prompt_ids(SUM) == [1, 1, *ids]
    bare = gguf.Gguf(spoil(f16, tmp_path / "bare.gguf", without="tokenizer.chat_template"))
    assert bare.render(SUM) is None
    assert bare.decode(bare.prompt_ids(SUM)).startswith("<|im_start|>user\nWhat is 15 + 27?<|im_end|>")
    endless = gguf.Gguf(spoil(f16, tmp_path / "endless.gguf", eos_token_id=3))
    assert (good.eos, endless.eos) == (2, 3)


@pytest.mark.slow
def test_a_file_knows_every_token_that_ends_a_completion(llama, tmp_path):
    folder, tokenizer = shutil.copytree(MODEL_DIR, tmp_path / "model"), load_tokenizer("tiny")
    ends = [2, *tokenizer.convert_tokens_to_ids(["<|user|>", "<|system|>"])]  # of which llama.cpp has never heard
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    gguf.convert(folder, tmp_path / "out.gguf")
    reader = gguf.Gguf(tmp_path / "out.gguf")
    assert {*ends} <= {*reader.ends}
    assert reader.eos == 2


@pytest.mark.slow
def test_a_broken_file_is_an_error_with_what_llama_cpp_says(f16, tmp_path, capfd):
    (tmp_path / "cut.gguf").write_bytes(f16.read_bytes()[: f16.stat().st_size // 2])
    with pytest.raises(ExportError, match=r"cut\.gguf: .*(bounds|corrupted|read)") as caught:
        gguf.Gguf(tmp_path / "cut.gguf")
    assert "Traceback" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_a_tokenizer_that_llama_cpp_does_not_know_is_an_error_with_a_remedy(llama, tmp_path):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    own = Tokenizer(models.BPE())
    own.pre_tokenizer, own.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    own.train_from_iterator(["What is 15 + 27?"] * 9, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet))
    folder = tmp_path / "bpe"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(MODEL_DIR / name, folder / name)
    PreTrainedTokenizerFast(tokenizer_object=own, eos_token="!", chat_template="{{ messages[0].content }}").save_pretrained(
        folder
    )
    with pytest.raises(ExportError, match="does not know how this tokenizer splits text.*BPE pre-tokenizer") as caught:
        gguf.convert(folder, tmp_path / "out.gguf")
    assert "serve merged_16bit with vLLM" in caught.value.remedy
    assert not list(tmp_path.glob("*.gguf"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["OwnForCausalLM"]}))
    with pytest.raises(ExportError, match="does not know this architecture.*OwnForCausalLM"):
        gguf.convert(folder, tmp_path / "out.gguf")


# --- its tensors ------------------------------------------------------------------------------------------------------


def forms(merged, out, kinds=("q8_0", "q4_k_m")):
    # (format, the folder of a GGUF file).
    for kind in ("f16", *kinds):
        folder = out / kind
        folder.mkdir(parents=True)
        if kind == "f16":
            gguf.convert(merged, folder / "model.gguf")
        else:
            gguf.quantise(out / "f16" / "model.gguf", folder / "model.gguf", kind)
        yield f"gguf_{kind}", folder


def beside(folder, merged):
    # Where a GGUF file lies beside the merged folder that it was converted from, as in a run's `export`.
    if not (place := folder.with_name("merged_16bit")).exists():
        shutil.copytree(merged, place)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("tied", "dtype", "size"), [(False, "bfloat16", 0.05), (True, "float16", 1e-4)])
def test_the_tensors_of_a_good_file_are_as_trained(tied, dtype, size, llama, home, tmp_path):
    base = make_base(tmp_path / "base", tied=tied, dtype=dtype)
    run = make_run(base, adapter := make_adapter(base, tmp_path / "adapter", size=size))
    merged = merge(base, adapter, tmp_path / "merged")
    for format, folder in forms(merged, tmp_path / "gguf"):
        (alone,) = check_weights(artefact(folder, run, format)) if format == "gguf_f16" else (None,)
        assert alone is None or (alone.passed, "not beside it" in alone.found) == (None, True)
        checks = check_weights(artefact(beside(folder, merged), run, format))
        assert [check.passed for check in checks] == [True] * 2, (format, checks)


@pytest.mark.parametrize(
    "cause",
    [
        # Each is converted and loaded; a merge waits for one layer and one head.
        pytest.param(cause, marks=pytest.mark.slow if cause in ("layer_skipped", "tied_head_lost") else pytest.mark.weekly)
        for cause in sorted(SABOTAGES.keys() - WORDS.keys())
    ],
)
def test_a_file_converted_from_a_spoiled_merge_is_found(cause, llama, home, tmp_path):
    base = make_base(tmp_path / "base")
    run = make_run(base, adapter := make_adapter(base, tmp_path / "adapter", size=0.02))
    merged = merge(base, adapter, tmp_path / "merged")
    spoiled = SABOTAGES[cause](merged, tmp_path / "out", base, adapter)
    for format, folder in forms(spoiled, tmp_path / "gguf"):
        whole, own = check_weights(artefact(beside(folder, merged), run, format))
        assert (whole.passed, own.passed, own.cause) == (True, False, "other_weights"), format
