"""Serves OpenAI's protocol over HTTP and answers at once, late, or not at all; has an operator that asks it.

Answers follow from the prompts, so runs are repeatable.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from analysis.benchmarks.instant import OPERATORS, SEED_SOURCE, InstantEvaluator, genes, score
from evo.llm.budget import ModelBudget
from evo.llm.prompt_scheduler import PromptScheduler
from evo.llm.queue import open_model_queue
from evo.search.engine import Engine, EngineOutcome, Llm
from evo.search.strategies import strategy_of
from evo.storage.store import Store
from operators.base import Draft, Parent
from operators.llm.base import LlmContext, Message, Prompt, TaskFacts, Unreadable


@dataclass
class Ask:
    """Asks for other genes than the parents'.  Works for parents that failed too."""

    name: str = "change"
    arity: int = 1
    repairs: bool = False
    contexts: list[LlmContext] = field(default_factory=list)

    def prompt(self, parents: Sequence[Parent], context: LlmContext) -> Prompt | None:
        self.contexts.append(context)
        about = "; ".join(f"trial {p.index}: {genes(p.source)} {p.verdict} {p.message}" for p in parents)
        tries = len(context.history)
        text = f"{self.name} {about}; {tries} tries before; luck {context.rng.random()}"
        return Prompt(self.name, (Message("system", "You write genes."), Message("user", text)))

    def read(self, answer: str, parents: Sequence[Parent]) -> Draft | Unreadable:
        found = re.search(r"GENES=\(\d+, \d+, \d+\)", answer)
        if not found:
            return Unreadable("no genes in the answer")
        source = re.sub(r"GENES=\([^)]*\)", found.group(), parents[0].source if parents else SEED_SOURCE)
        return Draft(source, f"genes of {self.name}", {"hint:none": 1}, {"code": found.span()})


def answer_to(text: str) -> str:
    """Genes that follow from the prompt, so that runs are repeatable."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"Better ones: GENES=({digest[0] * 30}, {digest[1] * 30}, {digest[2] * 30})"


@dataclass(frozen=True)
class Reply:
    """The server's reaction to one request.  `tokens`: billed (in, out); None: not in the reply."""

    status: int = 200
    text: str | None = None  # of the answer; None: follows from the prompt
    finish: str = "stop"
    tokens: tuple[int, int] | None = (10, 20)
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None  # sent instead of an answer
    delay_s: float = 0.0
    drop: bool = False  # the connection is cut after the request was read
    message: dict[str, Any] = field(default_factory=dict)  # more fields of the message


class Endpoint:
    """`script(body, number) -> Reply` decides.

    `requests`: the bodies that came; `clients`: the address that each came from; `billed`: the tokens of answers.
    """

    def __init__(self, script: Callable[[dict[str, Any], int], Reply] = lambda body, number: Reply()) -> None:
        self.script = script
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.clients: list[tuple[str, int]] = []
        self.times: list[float] = []
        self.billed = 0
        self.flying = self.most_flying = 0
        self.lock = threading.Lock()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # else the body waits 40 ms for the headers to be acknowledged

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                endpoint.handle(self, body)

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            request_queue_size = 128
            daemon_threads = True

            def handle_error(self, *_: object) -> None:  # clients that gave up
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def handle(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        with self.lock:
            number = len(self.requests)
            self.requests.append(body)
            self.clients.append(handler.client_address)
            self.keys.append(handler.headers.get("authorization"))
            self.times.append(time.monotonic())
            self.flying += 1
            self.most_flying = max(self.most_flying, self.flying)
        try:
            reply = self.script(body, number)
            time.sleep(reply.delay_s)
        finally:
            with self.lock:
                self.flying -= 1
                if reply.tokens and reply.status == 200:  # also if the client has gone: it is paid all the same
                    self.billed += sum(reply.tokens)
        if reply.drop:
            # A reset, not an orderly end.
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            handler.close_connection = True
            handler.connection.close()
            return
        data, kind = reply.body, "application/json"
        if data is None and body.get("stream"):
            data, kind = _events(_completion(body, reply), body), "text/event-stream"
        elif data is None:
            data = json.dumps(_completion(body, reply)).encode()
        handler.send_response(reply.status)
        sent = {"content-type": kind, "content-length": str(len(data)), **reply.headers}
        for name, value in sent.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(data)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _completion(body: dict[str, Any], reply: Reply) -> dict[str, Any]:
    text = answer_to(body["messages"][-1]["content"]) if reply.text is None else reply.text
    made: dict[str, Any] = {
        "id": "1",
        "object": "chat.completion",
        "created": 1,
        "model": body["model"],
        "choices": [
            {
                "index": 0,
                "finish_reason": reply.finish,
                "message": {"role": "assistant", "content": text, **reply.message},
            }
        ],
    }
    if reply.tokens:
        made["usage"] = dict(zip(("prompt_tokens", "completion_tokens"), reply.tokens, strict=True))
    return made


def _events(completion: dict[str, Any], body: dict[str, Any]) -> bytes:
    """The events of a stream with the completion: a part for every ten characters, then the end, then the usage."""
    (choice,) = completion.pop("choices")
    usage = completion.pop("usage", None)
    message = dict(choice["message"])
    text, message["content"] = message["content"], ""
    deltas = [message, *({"content": text[i : i + 10]} for i in range(0, len(text), 10))]
    ends = [(delta, None) for delta in deltas] + [({}, choice["finish_reason"])]
    parts = [{"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]} for delta, finish in ends]
    if usage and body.get("stream_options", {}).get("include_usage"):
        parts.append({"choices": [], "usage": usage})
    common = {**completion, "object": "chat.completion.chunk"}
    return "".join(f"data: {json.dumps(common | part)}\n\n" for part in parts).encode() + b"data: [DONE]\n\n"


TASK = TaskFacts("instant", "softmax", ("square: M=64",), "def reference(x): ...")


def context(**changes: Any) -> LlmContext:
    return LlmContext(task=TASK, hardware={}, rules=(), triton="3.6.0", **changes)


def llm_of(
    store: Store, *operators: Ask, limits: ModelBudget | None = None, environment: dict[str, str] | None = None
) -> Llm:
    """The models' side of the run in `store`."""
    config = store.info.config
    limits = limits or ModelBudget(config.max_tokens, config.max_usd)
    queue = open_model_queue(store.folder, config.models, environment or {}, limits, config.llm_slots)
    by_name = {o.name: o for o in operators or (Ask(), Ask("mend", repairs=True), Ask("cross", 2))}
    remembers = strategy_of(config).remembers
    prompts = PromptScheduler(
        by_name, config.models, config.guidance, store.trial, lambda trials: {}, context, remembers
    )  # type: ignore[arg-type]
    return Llm(prompts, queue)


def search_with(store: Store, llm: Llm, evaluator: InstantEvaluator | None = None, **more: Any) -> EngineOutcome:
    """Runs the engine on `store` until it ends."""
    evaluator = evaluator or InstantEvaluator()
    return Engine(store, evaluator.prepare(), SEED_SOURCE, evaluator, score, OPERATORS, llm=llm, **more).run()
