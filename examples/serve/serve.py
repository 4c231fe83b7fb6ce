"""Serve embeddings from a program file: no model, PyTorch or LLVM in the process.

    python examples/serve/serve.py encoder.smelt --port 8000

    POST /embed    {"ids": [[101, 7592, 102], [101, 102]]}   ->   {"embeddings": [[..], [..]]}
    GET  /health   200 as soon as the first call has run

Requests that arrive together are one batch: texts of one length are one call, so nothing is padded.
The pool of threads follows the container's quota and sleeps between calls. SIGTERM answers what has
arrived, then ends.

A path that ends in `.onnx` is served by ONNX Runtime in the same way, for comparison.
"""

from __future__ import annotations

import argparse
import json
import queue
import signal
import threading
from collections import defaultdict
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

MAX_BATCH_TOKENS = 8192
MAX_BODY_BYTES = 1 << 20
Encode = Callable[[dict[str, np.ndarray]], np.ndarray]


def load(path: str, threads: int) -> Encode:
    """Return a function from arrays of the model's inputs to the last hidden state."""
    if path.endswith(".onnx"):
        import onnxruntime  # noqa: PLC0415 - a service has one of both

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(path, options)
        return lambda feeds: np.asarray(session.run(None, feeds)[0])
    import smelt as sm  # noqa: PLC0415

    program = sm.load(path)
    if threads:
        program = sm.config(threads=threads)(program)
    return lambda feeds: np.asarray(next(iter(program(**feeds).values())))


def embed(encode: Encode, texts: list[list[int]]) -> list[list[float]]:
    """Return an embedding of unit length for each text, one call for each length."""
    groups: dict[int, list[int]] = defaultdict(list)
    for k, ids in enumerate(texts):
        groups[len(ids)].append(k)
    embeddings: list[list[float]] = [[]] * len(texts)
    for length, members in groups.items():
        rows = max(MAX_BATCH_TOKENS // length, 1)
        for part in (members[k : k + rows] for k in range(0, len(members), rows)):
            ids = np.array([texts[k] for k in part], np.int64)
            feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
            states = encode(feeds | {"token_type_ids": np.zeros_like(ids)})
            mean = states.mean(axis=1)
            unit = mean / np.linalg.norm(mean, axis=1, keepdims=True)
            for k, vector in zip(part, unit.tolist(), strict=True):
                embeddings[k] = vector
    return embeddings


class Batcher(threading.Thread):
    """Thread that computes all requests that wait, as one batch."""

    def __init__(self, encode: Encode) -> None:
        super().__init__(name="encoder")
        self._encode = encode
        self._waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def ask(self, texts: list[list[int]]) -> Any:
        """Return the embeddings, or the exception that computing them raised."""
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._waiting.put((texts, answer))
        return answer.get()

    def stop(self) -> None:
        """End the thread after the requests that wait."""
        self._waiting.put(None)

    def run(self) -> None:
        """Answer requests until `stop`."""
        is_open = True
        while is_open:
            waiting = [self._waiting.get()]
            while not self._waiting.empty():
                waiting.append(self._waiting.get())
            is_open = None not in waiting
            if batch := [request for request in waiting if request is not None]:
                self._answer(batch)

    def _answer(self, batch: list[Any]) -> None:
        try:
            rows: Any = iter(embed(self._encode, [ids for texts, _ in batch for ids in texts]))
            for texts, answer in batch:
                answer.put([next(rows) for _ in texts])
        except Exception as error:  # noqa: BLE001 - each request of a batch is then computed alone
            if len(batch) == 1:
                batch[0][1].put(error)
            else:
                for request in batch:
                    self._answer([request])


class Handler(BaseHTTPRequestHandler):
    """Answers of the service; the server has a `batcher`."""

    protocol_version = "HTTP/1.1"
    timeout = 5  # seconds until a connection without requests is closed
    server: Any  # a `Server`

    def do_GET(self) -> None:
        """Answer /health."""
        self._send(200 if self.path == "/health" else 404, {"ok": self.path == "/health"})

    def do_POST(self) -> None:
        """Answer /embed."""
        size = int(self.headers.get("Content-Length") or 0)
        if self.path != "/embed" or not 0 < size <= MAX_BODY_BYTES:
            self.close_connection = True
            return self._send(404 if self.path != "/embed" else 413, {"error": "no such request"})
        texts: Any = ()
        try:
            texts = json.loads(self.rfile.read(size))["ids"]
            is_right = all(ids and all(type(n) is int for n in ids) for ids in texts)
        except (ValueError, TypeError, KeyError):
            is_right = False
        if not is_right:
            return self._send(400, {"error": 'expected {"ids": [[101, 102], ..]}'})
        answer = self.server.batcher.ask(texts)
        if isinstance(answer, Exception):
            return self._send(422, {"error": str(answer)})
        return self._send(200, {"embeddings": answer})

    def _send(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Write no line for each request."""


class Server(ThreadingHTTPServer):
    """HTTP server of one encoder."""

    daemon_threads = False  # `server_close` waits for the answers in progress

    def __init__(self, address: tuple[str, int], encode: Encode) -> None:
        embed(encode, [[101] * 16])  # the first call touches the weights
        super().__init__(address, Handler)
        self.batcher = Batcher(encode)

    def run(self) -> None:
        """Answer until `shutdown`, then what has arrived."""
        self.batcher.start()
        try:
            self.serve_forever(poll_interval=0.05)
        finally:
            self.server_close()
            self.batcher.stop()
            self.batcher.join()


def main() -> None:
    """Serve the program of the command line."""
    parser = argparse.ArgumentParser(description="Serve embeddings from a program file.")
    parser.add_argument("program")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--threads", type=int, default=0, help="of one call; 0: all it may use")
    options = parser.parse_args()
    server = Server((options.host, options.port), load(options.program, options.threads))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: threading.Thread(target=server.shutdown).start())
    server.run()


if __name__ == "__main__":
    main()
