"""A local server that speaks chat completions, with scripted answers: the real edge, without the internet."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True, slots=True)
class Reply:
    """What the server does with one request."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    hangs: bool = False
    resets: bool = False


def ok(text: str | None = "They plan a trip to Lisbon.", tokens_in: int = 50, tokens_out: int = 7) -> Reply:
    """Answer with a text; None is a message without content, "" an empty one."""
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "tiny-2024",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
        "usage": {
            "prompt_tokens": tokens_in,
            "completion_tokens": tokens_out,
            "total_tokens": tokens_in + tokens_out,
        },
    }
    return Reply(body=json.dumps(body).encode())


def failure(status: int, *, code: str = "oops", retry_after: str | None = None) -> Reply:
    """Answer with an error of the protocol."""
    body = json.dumps({"error": {"message": "scripted", "type": "scripted", "code": code}}).encode()
    return Reply(status, body, {} if retry_after is None else {"Retry-After": retry_after})


def garbage(body: bytes = b"<html>busy</html>", content_type: str = "application/json") -> Reply:
    """Answer with a body that is no chat completion."""
    return Reply(body=body, headers={"Content-Type": content_type})


HANG = Reply(hangs=True)
RESET = Reply(resets=True)


@dataclass
class OpenAIServer:
    """A running server: script it, then look at what it was sent."""

    base_url: str
    script: deque[Reply] = field(default_factory=deque)
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)
    answers: Callable[[dict[str, Any]], Reply] | None = None
    """Makes a reply of a request, in place of the script."""

    def will(self, *replies: Reply) -> None:
        """Append replies; one request takes one, and when none is left the last one stays."""
        self.script.extend(replies)

    def next_reply(self, request: dict[str, Any]) -> Reply:
        """Take the next reply of the script."""
        if self.answers is not None:
            return self.answers(request)
        return self.script.popleft() if len(self.script) > 1 else self.script[0]


@contextmanager
def running() -> Iterator[OpenAIServer]:
    """Serve on a free port of the loopback device until the block ends."""
    http = _Server(("127.0.0.1", 0), _Handler)
    http.script = OpenAIServer(f"http://127.0.0.1:{http.server_port}/v1")
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield http.script
    finally:
        http.script.stopping.set()  # frees whoever hangs
        http.shutdown()
        http.server_close()  # joins the threads of the requests
        thread.join()


class _Server(ThreadingHTTPServer):
    script: OpenAIServer
    daemon_threads = False
    block_on_close = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients that give up are part of the script."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        """Answer one chat completion by the script."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        request = {"path": self.path, **json.loads(body)}
        self.server.script.requests.append(request)
        self.server.script.keys.append(self.headers.get("Authorization", ""))
        self.close_connection = True
        self._play(self.server.script.next_reply(request))

    def _play(self, reply: Reply) -> None:
        if reply.hangs:
            self.server.script.stopping.wait(30)
            return
        if reply.resets:
            linger_0 = struct.pack("ii", 1, 0)  # closing then sends RST
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_0)
            self.connection.close()
            return
        self.send_response(reply.status)
        headers = {"Content-Type": "application/json", "Connection": "close", **reply.headers}
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        self.wfile.write(reply.body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Keep stderr clean."""
