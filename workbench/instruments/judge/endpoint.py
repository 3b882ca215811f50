"""A judge behind an OpenAI-compatible address, asked with Python's own HTTP client."""

from __future__ import annotations

import contextlib
import email.utils
import http.client
import ipaddress
import json
import os
import re
import time
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from workbench.base.errors import TaskError
from workbench.base.kinds import Fields
from workbench.base.secret import LOOKS, is_secret
from workbench.instruments.judge.judging import Reply

_MOST_BYTES = 2**20  # of an answer
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")  # no key looks like this


class CallError(Exception):
    """A server's refusal: `code`, its HTTP status (None: an answer in another form), and how long
    it asks to wait, in seconds.
    """

    def __init__(
        self, text: str, code: int | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(text)
        self.code, self.retry_after_s = code, retry_after_s


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    # Prompts, completions and the key go to the address that was given, and to no other.
    def redirect_request(self, *_: Any) -> None:  # ty: ignore[incompatible-method-override]
        return None


class Endpoint:
    """A model behind an OpenAI-compatible address, to be asked as a judge. It is reached when it is
    called, and not before.

    >>> endpoint = wb.rewards.Endpoint("http://localhost:8000/v1", "Qwen/Qwen2.5-7B-Instruct")
    >>> endpoint.asks
    'Qwen/Qwen2.5-7B-Instruct at localhost:8000, on this machine'

    Args:
        address: up to and with `/v1`, as its server or vendor names it.
        model: its name there.
        key_variable: environment variable that holds the key; the key itself is never kept.
        max_tokens: of an answer.
        timeout_s: after which a silent connection is given up.
        options: more fields of the request; None leaves one out (`temperature=None`).

    Raises:
        TaskError: not an address, or one that holds a key; `key_variable` is no name in capitals.
    """

    def __init__(
        self,
        address: str,
        model: str,
        *,
        key_variable: str | None = None,
        max_tokens: int = 256,
        timeout_s: float = 60.0,
        **options: Any,
    ) -> None:
        # None of these may be echoed before it is known to hold no key.
        try:
            parts = urlsplit(str(address))
            port = parts.port
        except ValueError:  # a port or an IPv6 address that is none
            parts = port = None
        if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
            raise TaskError(
                "a judge's address (not shown: it may hold a key)",
                rule="an address is a URL with http or https and a host",
                remedy="for example http://localhost:8000/v1",
            )
        plain_name = key_variable is None or _VARIABLE.fullmatch(key_variable)
        where = f"{parts.hostname}{parts.path}#{parts.fragment}"
        login = parts.username is not None or parts.password is not None
        if login or parts.query or LOOKS.search(where) or not plain_name or _holds_key(options):
            raise TaskError(
                "a judge's address, options or key_variable hold a key",
                rule="a key stands in no file: addresses and options are recorded",
                remedy="put it into an environment variable in capitals, and give its name:"
                ' key_variable="JUDGE_KEY"',
            )
        self.address, self.model = str(address).rstrip("/"), model
        self.key_variable, self.timeout_s = key_variable, timeout_s
        self.options: Fields = {"temperature": 0, "max_tokens": max_tokens, **options}
        self.host = f"{parts.hostname}:{port}" if port else parts.hostname
        self.local = _is_local(parts.hostname)
        # What is for this machine is sent to no proxy.
        proxies = [urllib.request.ProxyHandler({})] if self.local else []
        self._opener = urllib.request.build_opener(_NoRedirect, *proxies)

    @property
    def max_tokens(self) -> int | None:
        """Of an answer; None: its server decides."""
        return self.options.get("max_completion_tokens") or self.options["max_tokens"]

    @property
    def identity(self) -> str:
        """What decides on its answers."""
        return json.dumps([self.address, self.model, self.options], sort_keys=True, default=str)

    @property
    def asks(self) -> str:
        """Who is asked, in words."""
        where = "on this machine" if self.local else "over the network"
        return f"{self.model} at {self.host}, {where}"

    def __call__(self, messages: list[Fields]) -> Reply:
        """Ask, and wait for the answer. CallError: it was refused; TimeoutError or ConnectionError:
        there was none.
        """
        fields = {"model": self.model, "messages": messages, **self.options}
        body = {name: value for name, value in fields.items() if value is not None}
        headers, key = {"Content-Type": "application/json"}, ""
        if self.key_variable:
            key = os.environ.get(self.key_variable, "").strip()
            if not key:
                raise CallError(f"the environment variable {self.key_variable} is not set", 401)
            if not (key.isascii() and key.isprintable()):
                raise CallError(f"the key in {self.key_variable} is no line of plain ASCII", 401)
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(
            f"{self.address}/chat/completions", json.dumps(body).encode(), headers
        )
        try:
            with self._opener.open(request, timeout=self.timeout_s) as response:
                content = response.read(_MOST_BYTES)
                # a read of at most so many does not say that the connection was lost
                cut = response.length and len(content) < _MOST_BYTES
        except urllib.error.HTTPError as error:
            content = b""
            with error, contextlib.suppress(OSError, http.client.HTTPException):
                content = error.read(_MOST_BYTES)
            said = _safe(content.decode("utf-8", "replace"), key)
            wait_s = _retry_after_s(error.headers.get("Retry-After"))
            raise CallError(f"HTTP {error.code}: {said}", error.code, wait_s) from None
        except urllib.error.URLError as error:
            if isinstance(error.reason, TimeoutError):
                raise TimeoutError(f"silent for {self.timeout_s:g} s") from None
            raise ConnectionError(_safe(str(error.reason), key)) from None
        except TimeoutError:
            raise TimeoutError(f"silent for {self.timeout_s:g} s") from None
        except Exception as error:  # the text of any may quote a header
            lost = isinstance(error, http.client.HTTPException | OSError)
            said = _safe(f"{type(error).__name__}: {error}", key)
            raise (ConnectionError if lost else CallError)(said) from None
        with contextlib.suppress(
            ValueError, LookupError, TypeError, AttributeError, RecursionError
        ):
            answer = json.loads(content)
            text, used = answer["choices"][0]["message"]["content"], answer.get("usage")
            used = used if isinstance(used, dict) else {}
            return Reply(
                text if isinstance(text, str) else "",
                _count(used.get("prompt_tokens")),
                _count(used.get("completion_tokens")),
                str(answer.get("model") or ""),
            )
        said = _safe(content.decode("utf-8", "replace"), key)
        if cut:
            raise ConnectionError(f"an answer that was cut: {said}")
        raise CallError(f"an answer that is no chat completion: {said}")


def _is_local(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost" or host.endswith(".localhost")


def _count(tokens: object) -> int | None:
    return tokens if type(tokens) is int and tokens >= 0 else None


def _holds_key(value: Any, name: str = "") -> bool:
    # Options may be nested, as `extra_headers` are.
    if isinstance(value, dict):
        return any(_holds_key(own, str(key)) for key, own in value.items())
    if isinstance(value, list | tuple):
        return any(_holds_key(own, name) for own in value)
    if name.lower().endswith("authorization"):
        return True
    return is_secret(name, value) or bool(isinstance(value, str) and LOOKS.search(value))


def _safe(said: str, key: str) -> str:
    # An error about a key may quote the key.
    text = " ".join(said.split())
    return LOOKS.sub("(a key)", text.replace(key, "(the key)") if key else text)[:200]


def _retry_after_s(said: str | None) -> float | None:
    # Seconds, or a date
    with contextlib.suppress(ValueError, TypeError):
        return max(0.0, float(said))  # ty: ignore[invalid-argument-type]  None is a TypeError
    with contextlib.suppress(ValueError, TypeError):
        until = email.utils.parsedate_to_datetime(said)  # ty: ignore[invalid-argument-type]
        return max(0.0, until.timestamp() - time.time())
    return None
