"""GGUF: made by llama.cpp's own converter and quantiser, read back by llama.cpp. Nothing is
installed or built here.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import importlib.metadata
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from workbench.base.cache import cache_folder
from workbench.base.errors import ExportError
from workbench.base.kinds import Tokenizer
from workbench.base.workspace import home_folder, replace_folder, shown
from workbench.training.plan.loading import load_tokenizer, reading

if TYPE_CHECKING:
    import numpy as np

KINDS = {"q8_0": "LLAMA_FTYPE_MOSTLY_Q8_0", "q4_k_m": "LLAMA_FTYPE_MOSTLY_Q4_K_M"}
INSTALL = (
    "uv pip install llama-cpp-python==0.3.36: it compiles llama.cpp, for minutes, with the C++"
    " compiler of this machine"
)
_CONVERTER = "convert_hf_to_gguf.py"
_RULE = (
    "GGUF is made and read by llama.cpp: by the library of llama-cpp-python, and the converter in"
    " its source package"
)
_ELSEWHERE = (
    "set LLAMA_CPP to a newer llama.cpp, which may know it, or serve merged_16bit with vLLM or"
    " transformers"
)
_REFUSALS = {  # what the converter says -> what that means
    "BPE pre-tokenizer was not recognized": (
        "llama.cpp does not know how this tokenizer splits text"
    ),
    "is not supported": "llama.cpp does not know this architecture",
}
# what both say of a full disk
_UNWRITTEN = re.compile(r"requested and \d+ written|iostream error|No space left|quota exceeded")
# What llama.cpp's server falls back to where a file has no chat template.
_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content"
    " }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def check_tools() -> Path:
    """The folder of llama.cpp's converter, fetched if needed; ExportError: a tool is missing."""
    llama_cpp()
    return converter() or fetch()


def converter() -> Path | None:
    """The folder of llama.cpp's converter, if it is here: a checkout that LLAMA_CPP names,
    Unsloth's own, or in our cache.
    """
    given = os.environ.get("LLAMA_CPP")
    for folder in [Path(given)] if given else [home_folder() / ".unsloth" / "llama.cpp", _cached()]:
        if (folder / _CONVERTER).is_file() and (folder / "gguf-py" / "gguf").is_dir():
            return folder
    if given:
        raise ExportError(
            f"LLAMA_CPP={given}: no {_CONVERTER} with its gguf-py there",
            rule=_RULE,
            remedy="set it to the folder of a llama.cpp checkout, or unset it",
        )
    return None


def fetch() -> Path:
    """Put the installed llama.cpp's converter into our cache, from its source package (77 MB);
    returns its folder.

    pip downloads it from its configured index; ExportError if it cannot.
    """
    pip = f"{sys.executable} -m" if importlib.util.find_spec("pip") else "uv tool run"
    command = f"{pip} pip download --quiet --no-deps --no-binary llama-cpp-python".split()
    package = f"llama-cpp-python=={_version()}"
    with tempfile.TemporaryDirectory() as folder:
        try:
            subprocess.run(
                [*command, package, "--dest", folder], check=True, capture_output=True, text=True
            )
        except (OSError, subprocess.CalledProcessError) as error:
            why = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[-1]
            raise ExportError(
                f"the source of {package} cannot be downloaded: {why}",
                rule=_RULE,
                remedy="connect to the network, or set LLAMA_CPP to the folder of a llama.cpp"
                " checkout",
            ) from error
        with (
            tarfile.open(next(Path(folder).glob("*.tar.gz"))) as tar,
            replace_folder(_cached()) as beside,
        ):
            for member in tar:
                name = member.name.partition("/vendor/llama.cpp/")[2]
                if name.split("/")[0] in (_CONVERTER, "conversion", "gguf-py", "LICENSE"):
                    tar.extract(member.replace(name=name, deep=False), beside, filter="data")
    return _cached()


def convert(merged: Path, out: Path, *, chat: bool = True, name: str = "") -> None:
    """A merged 16-bit folder as one f16 GGUF file; ExportError, with the cause, if llama.cpp's
    converter refuses it.

    `chat`: the run's prompts were chat messages, to which training adds no BOS beyond the
    template's. For text, the file adds what the tokenizer does. `name`: the model's name to write
    into the file; else the file's.
    """
    tools, tokenizer = check_tools(), load_tokenizer(merged)
    ids = [-1] if chat and tokenizer.chat_template else tokenizer("a")["input_ids"]
    adds = {
        "add_bos_token": ids[0] == tokenizer.bos_token_id,
        "add_eos_token": ids[-1] == tokenizer.eos_token_id,
    }
    _run_converter(tools, merged, out, name or out.stem, tokenizer, adds)
    library = llama_cpp()
    reader = gguf_py(tools).GGUFReader(out, "r+")
    # tokenizer.json has a say in these, too. What the converter left out keeps llama.cpp's default.
    for key, value in (adds | {"eos_token_id": tokenizer.eos_token_id}).items():
        field = reader.get_field(f"tokenizer.ggml.{key}")
        if field is not None and value is not None:
            field.parts[field.data[0]][0] = value
    reader.data.flush()
    if len(tokenizer.eos_ids) > 1:
        with _log(library):
            known = library.Llama(str(out), vocab_only=True, verbose=False)
        # llama.cpp knows the usual ones by their texts. For others a file has two places besides
        # that of EOS.
        vocabulary, ends = known._model.vocab, tokenizer.eos_ids
        unknown = [token for token in ends if not library.llama_vocab_is_eog(vocabulary, token)]
        known.close()
        add_ids(tools, out, dict(zip(("eom", "eot"), unknown, strict=False)))


def _run_converter(
    tools: Path, merged: Path, out: Path, name: str, tokenizer: Tokenizer, adds: dict[str, bool]
) -> None:
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".") as beside:
        links = Path(beside) / "model"  # the converter writes this name into the file
        links.mkdir()
        # Added tokens, and what is added to a text, are read from a file into which transformers 5
        # no longer writes them: without, `<answer>` is many tokens, and BOS a guess. A card would
        # give its own names to the model.
        for file in merged.iterdir():
            if file.suffix != ".md" and file.name != "tokenizer_config.json":
                (links / file.name).symlink_to(file.absolute())
        config = json.loads((merged / "tokenizer_config.json").read_text(encoding="utf-8")) | adds
        config["added_tokens_decoder"] = {
            index: token.__getstate__() for index, token in tokenizer.added_tokens_decoder.items()
        }
        (links / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
        command = [sys.executable, tools / _CONVERTER, links, "--outfile", out]
        command += ["--outtype", "f16", "--model-name", name]
        # it would run the code that a tokenizer names
        offline = os.environ | {"HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, env=offline, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip() or f"exit code {done.returncode}"
        _check_written(said)
        known = [means for words, means in _REFUSALS.items() if words in said]
        what = known[0] if known else "llama.cpp's converter failed"
        raise ExportError(
            f"{what}: {said.splitlines()[-1]}",
            rule="llama.cpp's converter knows a model and its tokenizer",
            remedy=_ELSEWHERE,
        )


def add_ids(tools: Path, file: Path, ids: dict[str, int]) -> None:
    """Write special tokens into a copy of a GGUF file, by name, such as {"eot": 7}."""
    if not ids:
        return
    library, beside = gguf_py(tools), file.with_suffix(".part")
    script = importlib.import_module("gguf.scripts.gguf_new_metadata")
    reader = library.GGUFReader(file)
    kind, new = library.GGUFValueType.UINT32, {}
    for name, token in ids.items():
        new[f"tokenizer.ggml.{name}_token_id"] = script.MetadataDetails(kind, token)
    writer = library.GGUFWriter(beside, reader.get_field("general.architecture").contents())
    with contextlib.redirect_stderr(io.StringIO()):  # a bar
        script.copy_with_new_metadata(reader, writer, new, [])
    beside.replace(file)


def gguf_py(tools: Path) -> ModuleType:
    """The Python library that lies beside the converter."""
    sys.path.insert(0, str(tools / "gguf-py"))
    try:
        return importlib.import_module("gguf")
    finally:
        sys.path.remove(str(tools / "gguf-py"))


def gguf_tensors(file: Path) -> dict[str, Callable[[], np.ndarray]]:
    """A GGUF file's tensors, each dequantised to float32 when its function is called."""
    library = gguf_py(check_tools())
    with reading(file.name):
        stored = library.GGUFReader(file).tensors
    read = library.quants.dequantize
    return {each.name: functools.partial(read, each.data, each.tensor_type) for each in stored}


def quantise(f16: Path, out: Path, kind: str) -> str:
    """An f16 GGUF as one of KINDS, by llama.cpp; returns the tensors that it stored otherwise."""
    library = llama_cpp()
    settings = library.llama_model_quantize_default_params()
    settings.ftype = getattr(library, KINDS[kind])
    with _log(library) as lines:
        failed = library.llama_model_quantize(
            str(f16).encode(), str(out).encode(), ctypes.byref(settings)
        )
    log = "".join(lines)
    if failed:
        _check_written(log)
        raise ExportError(
            f"{kind}: {log[-400:].strip()}",
            rule=_RULE,
            remedy="gguf_f16 and gguf_q8_0 take every model",
        )
    kinds = Counter(re.findall(r"not divisible by +(\d+) .*?falling back to +(\w+)", log))
    return "; ".join(
        f"{count} tensors as {name}: rows not a multiple of {size}"
        for (size, name), count in kinds.items()
    )


class Gguf:
    """Like `reading.HFReader`: a GGUF file in llama.cpp, on the CPU; `n_ctx` tokens at first."""

    def __init__(self, file: Path, n_ctx: int = 4096) -> None:
        self._library, self._file = llama_cpp(), file
        self._open(n_ctx)
        self.template = self._llama.metadata.get("tokenizer.chat_template")
        ends = self._library.llama_vocab_is_eog
        self.ends = {
            token for token in range(self._llama.n_vocab()) if ends(self._model.vocab, token)
        }
        eos, bos = self._llama.token_eos(), self._llama.token_bos()
        self.eos = None if eos < 0 else eos
        self.bos = None if bos < 0 else bos

    def _open(self, n_ctx: int) -> None:
        self.context = n_ctx
        threads = int(os.environ.get("OMP_NUM_THREADS") or max(1, (os.cpu_count() or 1) // 2))
        with _log(self._library) as lines, _without_repacking(self._library):
            try:
                self._llama = self._library.Llama(
                    str(self._file),
                    n_ctx=n_ctx,
                    n_threads=threads,
                    n_threads_batch=threads,
                    logits_all=True,
                    verbose=False,
                )
            except Exception as error:  # a broken file: of every kind
                said = [line.strip() for line in lines if re.search("error|fail", line)][:2]
                raise ExportError(
                    f"{shown(self._file)}: {'; '.join(said) or error}",
                    rule="a GGUF file loads in llama.cpp",
                    remedy="export it again",
                ) from error
        self._model = self._llama._model
        # at the latest when Python ends: too late for the library's own
        self.close = weakref.finalize(self, self._llama.close)

    def render(self, prompt: object) -> str | None:
        if isinstance(prompt, str):
            return prompt
        return self._formatter(messages=prompt).prompt if self.template else None

    def prompt_ids(self, prompt: object) -> list[int]:
        """Rendered (without a template, in ChatML), with the BOS and EOS that the file asks for,
        regardless of the template.

        llama.cpp's own server removes one of two BOS tokens; not all software does.
        """
        text = prompt if isinstance(prompt, str) else self._formatter(messages=prompt).prompt
        return self._model.tokenize(text.encode(), True, True)

    def ids(self, text: str) -> list[int]:
        return self._model.tokenize(text.encode(), False, True)

    def decode(self, ids: Sequence[int]) -> str:
        text = ctypes.create_string_buffer(1024 * (len(ids) + 1))  # a token of many blanks is long
        tokens = (ctypes.c_int32 * len(ids))(*ids)
        size = self._library.llama_detokenize(
            self._model.vocab, tokens, len(ids), text, len(text), False, False
        )
        return text.raw[: max(size, 0)].decode(errors="replace")

    def write(self, ids: Sequence[int], most: int, temperature: float = 0.0) -> list[int]:
        self._make_room(len(ids) + most)
        written: list[int] = []
        for token in self._llama.generate(
            ids, temp=temperature, top_k=0, top_p=1.0, min_p=0.0, repeat_penalty=1.0
        ):
            written.append(token)
            if token in self.ends or len(written) == most:
                break
        return written

    def logprobs(self, prompt_ids: Sequence[int], completion_ids: Sequence[int]) -> list[float]:
        from scipy.special import log_softmax

        ids, count = [*prompt_ids, *completion_ids], len(completion_ids)
        self._make_room(len(ids))
        self._llama.eval(ids)
        logits = self._llama.scores[len(prompt_ids) - 1 : len(ids) - 1].astype("float64")
        return log_softmax(logits, axis=1)[range(count), list(completion_ids)].tolist()

    @functools.cached_property
    def _formatter(self) -> Any:
        eos, bos = (
            "" if token is None else self._model.token_get_text(token)
            for token in (self.eos, self.bos)
        )
        chat_format = self._library.llama_chat_format
        return chat_format.Jinja2ChatFormatter(self.template or _CHATML, eos, bos)

    def _make_room(self, tokens: int) -> None:
        if tokens > self.context:
            self.close()
            self._open(2 * tokens)
        self._llama.reset()


@contextlib.contextmanager
def _without_repacking(library: ModuleType) -> Generator[None, None, None]:
    # Weights repacked for AMX (Intel, since 2023) end the process where a matrix is small: a
    # segmentation fault in 0.3.36.
    module, own = library.llama_cpp, library.llama_cpp.llama_model_default_params

    def params() -> object:
        chosen = own()
        chosen.use_extra_bufts = False
        return chosen

    module.llama_model_default_params = params
    try:
        yield
    finally:
        module.llama_model_default_params = own


def llama_cpp() -> ModuleType:
    """The library; ExportError, with the command that installs it, where it does not work."""
    try:
        return importlib.import_module("llama_cpp")
    except Exception as error:  # built for another machine: of every kind
        raise ExportError(
            f"llama-cpp-python: {type(error).__name__}: {error}", rule=_RULE, remedy=INSTALL
        ) from error


def _version() -> str:
    return importlib.metadata.version("llama-cpp-python").split("+")[0]


def _cached() -> Path:
    return cache_folder() / f"llama.cpp-{_version()}"


def _check_written(said: str) -> None:
    if _UNWRITTEN.search(said):
        raise OSError("No space left on device: llama.cpp could not write its file")


@contextlib.contextmanager
def _log(library: ModuleType) -> Generator[list[str]]:
    # What llama.cpp says, kept rather than printed.
    lines: list[str] = []
    collect = library.llama_log_callback(
        lambda level, text, data: lines.append(text.decode(errors="replace"))
    )
    library.llama_log_set(collect, None)
    try:
        yield lines
    finally:
        library.llama_log_set(library._logger.llama_log_callback, None)
