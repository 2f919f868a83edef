"""A local HTTP server with a script, which speaks a part of OpenAI's Chat Completions API.

In a test, on a thread of its own:

    with OpenAIServer([{"message": {"content": "Hello"}}]) as server:
        ...  # base_url=server.base_url
        assert len(server.requests) == 1

In a process of its own, with the script in a file and the requests under ``GET /requests``:

    python -m commitline.testing.openai_server script.json --port 8080

Request number n gets answer number n, which is one of:

- ``{"message": {...}, "finish_reason": ..., "usage": {...}}``: a completion. ``finish_reason``
  is ``tool_calls`` or ``stop`` unless it is given.
- ``{"status": 429, "headers": {...}, "body": ...}``: sent unchanged, for every path, so a script
  can have errors in any provider's protocol. A body that is not a string is sent as JSON.
- ``{"drop": True}``: the connection is closed without an answer.

With ``call_ids`` the server is as strict as real providers. It answers with status 400 if a call id
breaks the rule, is used for two calls, or does not have exactly one result right after its message.
It also reads requests of OpenAI's Responses API, of Anthropic and of Google.

    OpenAIServer(script, call_ids="[a-zA-Z0-9]{9}")  # or --call-ids; this is Mistral's rule
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias

Answer: TypeAlias = dict[str, Any]


class OpenAIServer:
    """Serves a script; start it with ``with``.

    Args:
        script: The answers, in order.
        port: The port to listen on; any free one by default.
        call_ids: A regular expression that every call id must match as a whole. It also turns on
            the other checks of calls and results.
    """

    def __init__(
        self, script: Sequence[Answer], *, port: int = 0, call_ids: str | None = None
    ) -> None:
        self._script = list(script)
        self._call_ids = call_ids
        self._lock = threading.Lock()
        self.requests: list[dict[str, Any]] = []
        """The bodies of all requests, in order; those answered with an error are among them."""
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def url(self) -> str:
        """Its address, without a path."""
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def base_url(self) -> str:
        """The base URL for an OpenAI client."""
        return f"{self.url}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _next(self, body: dict[str, Any]) -> Answer:
        with self._lock:
            number = len(self.requests)
            self.requests.append(body)
        fault = None if self._call_ids is None else _fault(body, self._call_ids)
        if fault is not None:
            return {"status": 400, "body": {"error": {"message": fault}}}
        if number < len(self._script):
            return self._script[number]
        message = f"the script has {len(self._script)} answers; number {number + 1} was asked for"
        return {"status": 400, "body": {"error": {"message": message}}}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers.get("content-length", "0")))
                body = json.loads(raw)
                answer = owner._next(body)
                if answer.get("drop"):
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                elif "message" in answer:
                    self._send(200, {}, _completion(answer, body))
                else:
                    self._send(answer["status"], answer.get("headers", {}), answer.get("body", {}))

            def do_GET(self) -> None:
                self._send(200, {}, owner.requests)

            def _send(self, status: int, headers: dict[str, str], body: Any) -> None:
                content = (body if isinstance(body, str) else json.dumps(body)).encode()
                self.send_response(status)
                for name, value in {"content-type": "application/json", **headers}.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler


def tool_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """Return one item of a message's ``tool_calls``; the arguments are sent unchanged."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the base URL, then serve a script until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m commitline.testing.openai_server")
    parser.add_argument("script", type=Path, help="a JSON file with the list of answers")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--call-ids", help="a regular expression that every call id must match")
    options = parser.parse_args(arguments)
    script = json.loads(options.script.read_text())
    with OpenAIServer(script, port=options.port, call_ids=options.call_ids) as server:
        sys.stdout.write(f"{server.base_url}\n")
        sys.stdout.flush()
        with suppress(KeyboardInterrupt):
            threading.Event().wait()


def _completion(answer: Answer, request: dict[str, Any]) -> dict[str, Any]:
    message = {"role": "assistant", "content": None, **answer["message"]}
    default = "tool_calls" if message.get("tool_calls") else "stop"
    return {
        "id": "chatcmpl-scripted",
        "object": "chat.completion",
        "created": 1_750_000_000,
        "model": request.get("model", "scripted"),
        "choices": [
            {"index": 0, "message": message, "finish_reason": answer.get("finish_reason", default)}
        ],
        "usage": answer.get(
            "usage", {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
        ),
    }


# --- strictness ----------------------------------------------------------------------------

_Said: TypeAlias = tuple[Literal["call", "result", "other"], str]


def calls_and_results(body: dict[str, Any]) -> Iterator[_Said]:
    """List a request's calls and results with their ids, and ``other`` for every other message."""
    for item in body.get("messages") or body.get("input") or body.get("contents") or []:
        content = item.get("parts") or item.get("content")
        blocks = content if isinstance(content, list) else []
        found = [_read(block) for block in (item, *blocks, *(item.get("tool_calls") or []))]
        exchanged = [entry for entry in found if entry[0] != "other"]
        # An item without a role is a call, a result or reasoning of the Responses API.
        if "role" in item and not any(kind == "result" for kind, _ in exchanged):
            yield "other", ""
        yield from exchanged


def _read(block: dict[str, Any]) -> _Said:
    for kind, of, key in _PLACES:
        if block.get("type") == of or block.get("role") == of:
            return kind, str(block.get(key))
        if of in block:  # Google's
            return kind, str(block[of].get(key))
    return "other", ""


_PLACES: Final[list[tuple[Literal["call", "result"], str, str]]] = [
    ("call", "function", "id"),
    ("call", "tool_use", "id"),
    ("call", "function_call", "call_id"),
    ("call", "functionCall", "id"),
    ("result", "tool", "tool_call_id"),
    ("result", "tool_result", "tool_use_id"),
    ("result", "function_call_output", "call_id"),
    ("result", "functionResponse", "id"),
]
"""How each provider names calls and results, by type, role or key, and the key of the id."""


def _fault(body: dict[str, Any], rule: str) -> str | None:
    """Return what a strict provider would refuse about a request's calls and results."""
    seen: set[str] = set()
    waiting: set[str] = set()
    for kind, call_id in [*calls_and_results(body), ("other", "")]:
        if kind == "call":
            if not re.fullmatch(rule, call_id):
                return f"the call id {call_id!r} does not match {rule}"
            if call_id in seen:
                return f"the call id {call_id!r} is used for two calls"
            seen.add(call_id)
            waiting.add(call_id)
        elif kind == "result":
            if call_id not in waiting:
                return f"a result has the call id {call_id!r}, and no call before it waits for one"
            waiting.remove(call_id)
        elif waiting:
            return f"there is no result for {sorted(waiting)}"
    return None


if __name__ == "__main__":
    main()
