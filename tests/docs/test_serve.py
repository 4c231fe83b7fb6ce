"""The service of `examples/serve` answers, refuses and stops."""

from __future__ import annotations

import importlib.util
import json
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.onnx.build import model, node, port

FOLDER = Path(__file__).parents[2] / "examples" / "serve"
TABLE = np.random.default_rng(0).standard_normal((50, 8)).astype(np.float32)


def module(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"serve_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def encoder() -> bytes:
    """A model with the inputs of an encoder: rows of a table, times the mask."""
    names = ["input_ids", "attention_mask", "token_type_ids"]
    nodes = [
        node("Mod", ["input_ids", "rows"], ["ids"]),
        node("Gather", ["table", "ids"], ["states"], axis=0),
        node("Add", ["attention_mask", "token_type_ids"], ["whole"]),
        node("Cast", ["whole"], ["mask"], to=1),
        node("Unsqueeze", ["mask", "last"], ["factors"]),
        node("Mul", ["states", "factors"], ["last_hidden_state"]),
    ]
    constants = {"table": TABLE, "last": np.array([-1]), "rows": np.array(50)}
    inputs = [port(n, np.int64, ["batch", "sequence"]) for n in names]
    return model(nodes, inputs, [port("last_hidden_state")], constants)


def test_a_service_answers_refuses_and_stops(tmp_path: Path) -> None:
    source, path = tmp_path / "model.onnx", tmp_path / "encoder.smelt"
    source.write_bytes(encoder())
    module("save").save(str(source), str(path), isa="host")
    serve = module("serve")
    server = serve.Server(("127.0.0.1", 0), serve.load(str(path), 1))
    thread = threading.Thread(target=server.run)
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}"

    def ask(body: Any, place: str = "/embed") -> Any:
        request = urllib.request.Request(url + place, json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    try:
        with urllib.request.urlopen(f"{url}/health", timeout=30) as answer:
            assert answer.status == 200
        texts = [[1, 2, 3], [4], [5, 6, 7], [8, 9]]
        means = np.stack([TABLE[ids].mean(0) for ids in texts])
        want = means / np.linalg.norm(means, axis=1, keepdims=True)
        np.testing.assert_allclose(ask({"ids": texts})["embeddings"], want, atol=1e-5)
        for body, status in (({"ids": [["a"]]}, 400), ({"ids": [[]]}, 400), ({}, 400)):
            with pytest.raises(urllib.error.HTTPError) as caught:
                ask(body)
            assert caught.value.code == status
            caught.value.close()
        with pytest.raises(urllib.error.HTTPError) as caught:
            ask({"ids": texts}, "/other")
        caught.value.close()
    finally:
        server.shutdown()
        thread.join(30)
    assert not thread.is_alive() and not server.batcher.is_alive()
