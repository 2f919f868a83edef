"""A fake provider that counts what reaches it, in a process of its own.

It stands for the outside world in tests and in the demo: payments with idempotency keys, mails
without. It counts *requests* (what was sent to it) and *effects* (what it did). So a test can
compare the ledger with the world. `commitline.testing.processes.ProviderProcess` starts it:

    python -m commitline.testing.provider --port 8900

Payments behave as public APIs do: the same key with the same body gets the first answer again,
the same key with another body is refused (400), and a request gets 409 while the first one is under
way. A request without a key can be looked up by the ``reference`` that its body named.

    POST /charges, /mails, /anything_with_an_s   an effect of that kind
    GET  /lookup/charge/REFERENCE                the answer that the request got, or 404
    GET  /orders/4821                            an order: a read, no effect
    GET  /stats                                  the counters
    POST /behaviour                              how to behave from now on (`Behaviour`)
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote


@dataclass
class Behaviour:
    """How the provider behaves; ``POST /behaviour`` sets it."""

    delay_seconds: float = 0.0
    """How long it waits between the effect and the answer."""
    drop_replies: int = 0
    """How many of the next answers it does not send."""
    decline: bool = False
    """Whether it refuses charges (402), without effect."""
    refuses: list[str] = field(default_factory=list)
    """The kinds of requests that it refuses (422), without effect: ``handover``."""
    forget_keys_after_seconds: float | None = None
    """How long it knows an idempotency key; None is for ever."""
    faults: float = 0.0
    """The share of requests that fail, if the world is one that fails (see the soak)."""


@dataclass
class _Remembered:
    body: bytes
    at: float
    answer: dict[str, Any] | None = None


@dataclass
class World:
    """Everything that has happened."""

    effects: Counter[str] = field(default_factory=Counter)
    """How often each thing happened: ``charge:4821``."""
    requests: Counter[str] = field(default_factory=Counter)
    """How many requests of each kind arrived: ``charge``."""
    sent: list[dict[str, Any]] = field(default_factory=list)
    """Every request for an effect, in order of arrival: kind, key, body, time, and whether it had
    its effect."""
    behaviour: Behaviour = field(default_factory=Behaviour)
    _known: dict[str, _Remembered] = field(default_factory=dict)
    _by_reference: dict[str, dict[str, Any]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def act(
        self, kind: str, key: str | None, body: bytes, *, slow_seconds: float = 0.0
    ) -> tuple[int, dict[str, Any]]:
        """Handle one request for an effect; return status and answer."""
        data = json.loads(body)
        subject = f"{kind}:{data.get('order_id') or data.get('to')}"
        with self._lock:
            self.requests[kind] += 1
            request: dict[str, Any] = {"kind": kind, "key": key, "body": body.decode()}
            request |= {"at": time.time(), "effect": False}
            self.sent.append(request)
            remembered = self._remembered(key)
            if remembered is not None:
                return _answer_again(remembered, body)
            if self.behaviour.decline:
                return 402, {"error": "card declined"}
            if kind in self.behaviour.refuses:
                return 422, {"error": f"the {kind} is refused"}
            self.effects[subject] += 1
            request["effect"] = True
            number = sum(self.effects.values())
            answer = {"id": f"{kind}_{number}", **data}
            if key is not None:
                self._known[key] = _Remembered(body, time.monotonic())
            if "reference" in data:
                self._by_reference[f"{kind}:{data['reference']}"] = answer
        time.sleep(self.behaviour.delay_seconds + slow_seconds)
        with self._lock:
            if key is not None:
                self._known[key].answer = answer
        return 200, answer

    def look_up(self, kind: str, reference: str) -> tuple[int, dict[str, Any]]:
        """Return the answer to the request that named this reference; 404 if it had no effect."""
        with self._lock:
            found = self._by_reference.get(f"{kind}:{reference}")
        return (404, {"error": "not found"}) if found is None else (200, found)

    def stats(self) -> dict[str, Any]:
        """Return the counters as JSON data."""
        with self._lock:
            return {
                "effects": dict(self.effects),
                "requests": dict(self.requests),
                "sent": list(self.sent),
            }

    def take_drop(self) -> bool:
        """Whether to drop this answer; counts it as dropped."""
        with self._lock:
            dropped = self.behaviour.drop_replies > 0
            self.behaviour.drop_replies -= dropped
            return dropped

    def _remembered(self, key: str | None) -> _Remembered | None:
        found = self._known.get(key) if key is not None else None
        limit = self.behaviour.forget_keys_after_seconds
        if found is not None and limit is not None and time.monotonic() - found.at > limit:
            return None
        return found


def _answer_again(remembered: _Remembered, body: bytes) -> tuple[int, dict[str, Any]]:
    if remembered.body != body:
        return 400, {"error": "this key was used with another body"}
    if remembered.answer is None:
        return 409, {"error": "a request with this key is under way"}
    return 200, remembered.answer


class _Handler(BaseHTTPRequestHandler):
    world: World

    def do_GET(self) -> None:
        if self.path == "/stats":
            return self._answer(200, self.world.stats())
        if self.path.startswith("/lookup/"):
            _, _, kind, reference = unquote(self.path).split("/", 3)
            return self._answer(*self.world.look_up(kind, reference))
        order_id = self.path.rsplit("/", 1)[-1]
        with self.world._lock:
            self.world.requests["order"] += 1
        return self._answer(200, {"order_id": order_id, "total_cents": 4900, "currency": "eur"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        if self.path == "/behaviour":
            self.world.behaviour = Behaviour(**json.loads(body))
            return self._answer(200, {})
        kind = self.path.strip("/").removesuffix("s")
        status, answer = self.world.act(kind, self.headers.get("Idempotency-Key"), body)
        if self.world.take_drop():
            self.close_connection = True
            return None
        return self._answer(status, answer)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: the counters say what arrived."""

    def _answer(self, status: int, data: dict[str, Any]) -> None:
        text = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: tests kill clients in the middle of a request."""


def serve(
    port: int = 0, *, host: str = "127.0.0.1", world: World | None = None
) -> ThreadingHTTPServer:
    """Return a server, bound and not yet serving; port 0 picks a free one."""
    handler = type("Handler", (_Handler,), {"world": world or World()})
    return _Server((host, port), handler)


def main(world: World | None = None) -> None:
    """Serve until killed; print the address first."""
    parser = argparse.ArgumentParser(description="A fake provider that counts.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--host", default="127.0.0.1", help="what it listens on")
    given = parser.parse_args()
    server = serve(given.port, host=given.host, world=world)
    print(f"http://{given.host}:{server.server_address[1]}", flush=True)  # noqa: T201
    server.serve_forever()


if __name__ == "__main__":
    main()
