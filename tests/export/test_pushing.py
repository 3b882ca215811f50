"""Pushing: what is refused before anything is sent, and what a hub is sent (by huggingface_hub, to a server on this machine)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from base64 import b64decode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from made_runs import made_run

from workbench.base.errors import ExportError
from workbench.exporting import passport
from workbench.exporting.checks import Check, Proof
from workbench.exporting.making import export
from workbench.exporting.pushing import push, secret_in


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKBENCH_HOME", str(tmp_path_factory.mktemp("home")))
        yield export(made_run(), into="base")


def restamped(artefact, **found):
    """The passport of what lies there now, with this in it."""
    passport._write(artefact.path, passport.read_passport(artefact.path) | found)


def test_what_is_not_proven_is_not_uploaded(made):
    artefact = made["adapter"]
    with pytest.raises(ExportError, match="(?s)adapter: not proven.*workbench prove.*unproven=True"):
        push(artefact, "me/sums")
    restamped(artefact, proof={"passed": False})
    with pytest.raises(ExportError, match="adapter: its proof failed"):
        push(artefact, "me/sums")
    restamped(artefact, proof=None)
    with pytest.raises(ExportError, match="cannot be reached") as error:  # so it went on, to a hub that is not there
        push(artefact, "me/sums", unproven=True)
    assert error.value.network


def test_a_proof_that_holds_is_uploaded(made):
    passport.add_proof(
        made["merged_16bit"], Proof("merged_16bit", "merged_16bit", (Check("files", "sums", True, "as exported"),))
    )
    with pytest.raises(ExportError, match="cannot be reached"):
        push(made["merged_16bit"], "me/sums")


def test_a_changed_file_is_not_uploaded(made):
    file = made["adapter"].path / "adapter_model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + b"\0\0")
    with pytest.raises(ExportError, match="adapter_model.safetensors: not as exported"):
        push(made["adapter"], "me/sums", unproven=True)
    file.write_bytes(content)


SECRETS = {
    "a token of the hub": "token: hf_" + "a1B2" * 8,
    "a token of GitHub or GitLab": "ghp_" + "a1B2" * 9,
    "an API key": "sk-proj-" + "a1B2" * 9,
    "an AWS key": "AKIA" + "ABCD" * 4,
    "a private key": "-----BEGIN OPENSSH PRIVATE KEY-----",
    "a path of somebody's machine": '"/home/ada/models/x"',
    "the content of a secret variable of the environment": "it is correct-horse-battery",
    "a path of this machine": "{home}/runs/r",
}


@pytest.mark.parametrize("kind", SECRETS)
def test_a_secret_in_a_text_file_is_found_and_not_repeated(kind, home, monkeypatch):
    monkeypatch.setenv("MY_API_KEY", "correct-horse-battery")
    text = SECRETS[kind].format(home=home)
    (home / "README.md").write_text(f"# Model\n\n{text}\n")
    assert secret_in(home / "README.md") == kind
    assert text not in kind


def test_what_stands_in_every_model_is_no_secret(made, home):
    for artefact in made.artefacts.values():
        assert [secret_in(file) for file in artefact.path.iterdir()] == [""] * len(list(artefact.path.iterdir()))
    (home / "tokenizer.json").write_text('{"/home/": 1, "/Users": 2, "hf_": 3, "sk-": 4, "Ġ/home": 5}')
    assert secret_in(home / "tokenizer.json") == ""


def test_a_word_of_the_vocabulary_is_no_path_of_this_machine(home, monkeypatch):
    monkeypatch.setenv("HOME", "/root")
    monkeypatch.setenv("WORKBENCH_HOME", "/content")
    file = home / "tokenizer.json"
    file.write_text('{"/root": 1, "/content": 2, "/root/": 3}')
    assert secret_in(file) == ""
    for path in ("/root/runs/r", "/content/drive"):
        file.write_text(f'{{"{path}": 1}}')
        assert secret_in(file) == "a path of this machine"


def test_an_artefact_with_a_secret_is_not_uploaded(made):
    file = made["adapter"].path / "chat_template.jinja"
    content = file.read_text()
    file.write_text(content + "{# hf_" + "a1B2" * 8 + " #}")
    found = passport.read_passport(made["adapter"].path)
    own = {file.name: passport.size_and_sum(file)}
    restamped(made["adapter"], files=found["files"] | own)
    with pytest.raises(ExportError, match="chat_template.jinja: a token of the hub") as error:
        push(made["adapter"], "me/sums", unproven=True)
    assert "a1B2" not in str(error.value)
    file.write_text(content)
    restamped(made["adapter"], files=found["files"])


class Hub(BaseHTTPRequestHandler):
    """The endpoints of the hub that an upload uses; large files go to git-lfs, as there."""

    def answer(self, content, status=200):
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def read(self):
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def do_GET(self):
        self.server.asked.append(("GET", self.path))
        self.answer({"error": "Repository not found"}, 404)

    def do_PUT(self):
        self.server.large[self.path.rpartition("/")[2]] = self.read()
        self.answer({})

    def do_POST(self):
        body, server = self.read(), self.server
        server.asked.append(("POST", self.path))
        if self.headers.get("Authorization") != "Bearer hf_ours":
            self.answer({"error": "Invalid username or password."}, 401)
        elif self.path == "/api/repos/create":
            server.created.append(json.loads(body))
            self.answer({"url": f"{server.address}/me/sums", "name": "me/sums", "id": "1"})
        elif self.path == "/api/validate-yaml":
            server.card = json.loads(body)
            self.answer({"errors": [], "warnings": []})
        elif self.path == "/api/models/me/sums/preupload/main":
            files = json.loads(body)["files"]
            modes = {file["path"]: "lfs" if file["path"].endswith(".safetensors") else "regular" for file in files}
            self.answer({"files": [{"path": path, "uploadMode": mode, "shouldIgnore": False} for path, mode in modes.items()]})
        elif self.path == "/me/sums.git/info/lfs/objects/batch":
            objects = json.loads(body)["objects"]
            actions = [{**one, "actions": {"upload": {"href": f"{server.address}/large/{one['oid']}"}}} for one in objects]
            self.answer({"transfer": "basic", "objects": actions})
        elif self.path == "/api/models/me/sums/commit/main":
            server.commit = [json.loads(line) for line in body.splitlines()]
            said = {"commitUrl": f"{server.address}/me/sums/commit/1", "commitOid": "1", "hookOutput": "", "success": True}
            self.answer(said)
        else:
            self.answer({"error": f"unknown: {self.path}"}, 404)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.address = f"http://127.0.0.1:{server.server_address[1]}"
    server.asked, server.created, server.large, server.commit, server.card = [], [], {}, [], {}
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


def pushed(hub, artefact, token):
    # The hub's address is read when huggingface_hub is imported.
    environment = {**os.environ, "HF_ENDPOINT": hub.address, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    environment |= {"HF_TOKEN": token, "HF_HUB_DISABLE_IMPLICIT_TOKEN": "0", "WORKBENCH_HOME": str(artefact.path.parents[3])}
    script = (
        "import sys\nfrom workbench.exporting.artefacts import open_artefact\nfrom workbench.exporting.pushing import push\n"
        "from workbench.base.errors import ExportError\n"
        "try:\n    print(push(open_artefact(sys.argv[1]), 'me/sums', unproven=True))\n"
        "except ExportError as error:\n    print(error)\n"
    )
    command = [sys.executable, "-c", script, str(artefact.path)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout


@pytest.mark.slow
def test_every_file_of_the_artefact_arrives_private_and_byte_by_byte(made, hub):
    out = pushed(hub, made["merged_16bit"], "hf_ours")
    assert out.strip().endswith("/me/sums"), out
    [created] = hub.created
    assert (created["name"], created["organization"]) == ("sums", "me")
    assert created.get("private", created.get("visibility")) in (True, "private")
    header, *entries = hub.commit
    assert header["key"] == "header"
    assert "merged_16bit" in header["value"]["summary"]
    got = {e["value"]["path"]: b64decode(e["value"]["content"]) for e in entries if e["key"] == "file"}
    got |= {e["value"]["path"]: hub.large[e["value"]["oid"]] for e in entries if e["key"] == "lfsFile"}
    assert got == {file.name: file.read_bytes() for file in made["merged_16bit"].path.iterdir()}
    assert "base_model" in hub.card["content"]


@pytest.mark.slow
def test_a_token_that_may_not_write_is_named(made, hub):
    out = pushed(hub, made["adapter"], "hf_theirs")
    assert "me/sums: the hub answers 401" in out
    assert "set HF_TOKEN" in out
    assert "hf_theirs" not in out


def test_a_name_that_is_no_repository(made):
    with pytest.raises(ExportError, match="(?s)repo 'not a name'.*OWNER/NAME"):
        push(made["adapter"], "not a name", unproven=True)
