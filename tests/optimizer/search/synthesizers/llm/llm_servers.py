"""OpenAI-compatible servers on loopback. They hold no kernel: their code is the parent's source in
the prompt, changed by numbers in the prompt.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_BEGIN = re.compile(r"^--- KERNLORE-DATA ([0-9a-f]+) BEGIN ([a-z-]+) ---$")
_END = re.compile(r"^--- KERNLORE-DATA ([0-9a-f]+) END ---$")


@dataclass
class Answered:
    """The answer of the server: a chat completion with `content` and `tool_calls`, or `raw`."""

    content: str | None = ""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    finish: str = "stop"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: str | None = None
    refusal: str | None = None
    usage: Mapping[str, int] | None = field(
        default_factory=lambda: {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
    )


Script = Callable[[dict[str, Any], int], Answered]


class ModelServer:
    """requests: the received bodies. script(body, index of the request)."""

    def __init__(self, script: Script) -> None:
        self.requests: list[dict[str, Any]] = []
        self.released = threading.Event()
        self._script = script
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.requests.append(body)
                server._send(self, server._script(body, len(server.requests) - 1))

            def log_message(self, format: str, *args: Any) -> None: ...

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        # `close` waits for one polling interval.
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def close(self) -> None:
        self.released.set()
        self._http.shutdown()
        self._http.server_close()

    def _send(self, handler: BaseHTTPRequestHandler, answered: Answered) -> None:
        body = (
            answered.raw if answered.raw is not None else json.dumps(_completion(answered))
        ).encode()
        try:
            handler.send_response(answered.status)
            for name, value in answered.headers.items():
                handler.send_header(name, value)
            handler.send_header("Content-Type", "application/json")
            handler.send_header("Content-Length", str(len(body)))
            handler.end_headers()
            handler.wfile.write(body)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the caller timed out, as the test wants


def _completion(answered: Answered) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answered.content}
    if answered.tool_calls:
        message["tool_calls"] = answered.tool_calls
    if answered.refusal:
        message["refusal"] = answered.refusal
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "scripted",
        "choices": [{"index": 0, "message": message, "finish_reason": answered.finish}],
        **({"usage": answered.usage} if answered.usage else {}),
    }


def failure(status: int, message: str, headers: Mapping[str, str] | None = None) -> Answered:
    raw = json.dumps({"error": {"message": message, "type": "error", "code": None}})
    return Answered(status=status, raw=raw, headers=headers or {})


def tool_call(name: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": f"call_{name}", "type": "function", "function": function}


def prompt_of(body: Mapping[str, Any]) -> str:
    """The first user message."""
    return next(str(m["content"]) for m in body["messages"] if m["role"] == "user")


def blocks(prompt: str) -> tuple[list[tuple[str, str]], str]:
    """(kind, text) of every data block, and the text outside of them."""
    inside: list[tuple[str, str]] = []
    outside: list[str] = []
    kind = ""
    lines: list[str] = []
    for line in prompt.split("\n"):
        if begin := _BEGIN.match(line):
            assert not kind, "a block opens inside a block"
            kind, lines = begin[2], []
        elif _END.match(line):
            inside.append((kind, "\n".join(lines)))
            kind = ""
        else:
            (lines if kind else outside).append(line)
    assert not kind, "a block is never closed"
    return inside, "\n".join(outside)


def block(prompt: str, kind: str) -> str:
    return next(text for name, text in blocks(prompt)[0] if name == kind)


def moved(body: Mapping[str, Any]) -> dict[str, Any]:
    """The parent with the move's parameter multiplied by its factor up to its limit, rounded down
    to a multiple of the fact; all values are read from the prompt.
    """
    prompt = prompt_of(body)
    header, _, source = block(prompt, "source").partition("\n")
    name = header.removeprefix("file: ")
    move = block(prompt, "move")
    change = re.search(r"^change: increase (\w+), by a factor of (\d+)$", move, re.M)
    limit = re.search(r"^limit: ([\d.]+)", move, re.M)
    simd = re.search(r"^- simd width: (\d+)", block(prompt, "facts"), re.M)
    assert change and limit and simd
    role, factor = change[1], int(change[2])
    constant = re.search(rf"{role.upper()} = (\d+)", source)
    assert constant
    value = min(int(constant[1]) * factor, int(float(limit[1])))
    value -= value % int(simd[1])
    changed = source.replace(constant[0], f"{role.upper()} = {value}")
    return {
        "plan": f"{role} to {value}",
        "used": [re.search(r"^id: (\S+)", move, re.M)[1], "mv_never_shown"],  # type: ignore[index]
        "language": "cpp",
        "files": {name: changed + "\n"},
        "main": name,
        "parameters": {role: value},
    }


def good(body: Mapping[str, Any]) -> Answered:
    """In the form that the prompt requests."""
    answer = moved(body)
    files = answer.pop("files")
    blocks = [f"File: {name}\n```\n{text}```\n" for name, text in files.items()]
    return Answered("\n\n".join([json.dumps(answer), *blocks]))
