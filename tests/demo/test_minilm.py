"""The encoder: pure array API code, equal in every namespace, equal to PyTorch's."""

import math
import types

import numpy as np
import pytest

from demo import minilm, torch_model, weights
from demo.minilm import encode, erf, layers_of, random_weights

# Names of the standard's 2024.12 revision (elementwise, creation, manipulation, indexing,
# linear algebra, searching and statistical functions) that an encoder may want. `erf`
# is the one exception, looked up with a fallback.
NAMES = (
    "abs add arange astype clip concat divide exp expand_dims full log matmul matrix_transpose max "
    "maximum mean min minimum multiply permute_dims reshape sqrt squeeze stack subtract sum take "
    "tanh tensordot vecdot where zeros"
)
STANDARD = frozenset(NAMES.split())

needs_model = pytest.mark.skipif(bool(weights.missing()), reason="needs the extra `demo`")


def small(layers=2, seed=3):
    return random_weights(hidden=24, layers=layers, vocabulary=50, positions=16, seed=seed)


def batch(texts=3, length=7, seed=5):
    source = np.random.default_rng(seed)
    lengths = source.integers(1, length + 1, texts)
    lengths[0] = length
    mask = np.arange(length)[None, :] < lengths[:, None]
    return np.where(mask, source.integers(1, 50, (texts, length)), 0), mask


class Recorder(types.ModuleType):
    """NumPy that notes which of its names were used."""

    def __init__(self):
        super().__init__("recorder")
        self.used = set()

    def __getattr__(self, name):
        self.used.add(name)
        return getattr(np, name)


def test_uses_only_names_of_the_standard():
    recorder = Recorder()
    encode(recorder, small(), *batch(), heads=4)
    assert recorder.used - {"erf"} <= STANDARD
    assert "matmul" in recorder.used  # the recorder did see the calls


@pytest.mark.parametrize(("texts", "length"), [(3, 7), (1, 7), (3, 1), (1, 1)])
def test_runs_in_the_strict_namespace(texts, length):
    strict = pytest.importorskip("array_api_strict")
    parameters, (ids, mask) = small(), batch(texts, length)
    with strict.ArrayAPIStrictFlags(api_version="2024.12"):
        theirs = encode(
            strict,
            {name: strict.asarray(value) for name, value in parameters.items()},
            strict.asarray(ids),
            strict.asarray(mask),
            heads=4,
        )
    ours = encode(np, parameters, ids, mask, heads=4)
    # The strict namespace computes with NumPy: the same operations give the same bits.
    np.testing.assert_array_equal(np.asarray(theirs), ours)


def test_result_is_float32_of_length_one():
    vectors = encode(np, small(), *batch(), heads=4)
    assert vectors.shape == (3, 24)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, rtol=1e-6)


def test_padding_changes_nothing():
    parameters, (ids, mask) = small(), batch()
    whole = encode(np, parameters, ids, mask, heads=4)
    for row in range(len(ids)):
        length = int(mask[row].sum())
        alone = encode(
            np, parameters, ids[row : row + 1, :length], mask[row : row + 1, :length], heads=4
        )
        np.testing.assert_allclose(alone[0], whole[row], atol=1e-6)
    noisy = np.where(mask, ids, 49)
    np.testing.assert_array_equal(encode(np, parameters, noisy, mask, heads=4), whole)


def test_matches_a_literal_definition_in_float64():
    """Attention and norms spelt out text by text, head by head."""
    parameters, (ids, mask) = small(layers=1), batch()
    wide = {name: value.astype(np.float64) for name, value in parameters.items()}

    def norm(x, at):
        y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
        return y * wide[f"{at}.scale"] + wide[f"{at}.shift"]

    def linear(x, at):
        return x @ wide[f"{at}.matrix"] + wide[f"{at}.bias"]

    for row, got in enumerate(encode(np, parameters, ids, mask, heads=4)):
        n = int(mask[row].sum())
        x = wide["words"][ids[row, :n]] + wide["positions"][:n] + wide["segments"][0]
        x = norm(x, "embed_norm")
        q, k, v = (linear(x, f"layer0.{part}") for part in ("query", "key", "value"))
        heads = []
        for h in range(4):
            head = slice(6 * h, 6 * h + 6)
            scores = np.exp(q[:, head] @ k[:, head].T / math.sqrt(6))
            heads.append(scores / scores.sum(1, keepdims=True) @ v[:, head])
        x = norm(x + linear(np.concatenate(heads, 1), "layer0.attended"), "layer0.attention_norm")
        y = linear(x, "layer0.widen")
        y = y * np.vectorize(lambda t: 0.5 * (1 + math.erf(t / math.sqrt(2))))(y)
        x = norm(x + linear(y, "layer0.narrow"), "layer0.norm")
        pooled = x.mean(0)
        # A few hundred float32 roundings of values near one, and erf within 4e-7.
        np.testing.assert_allclose(got, pooled / np.linalg.norm(pooled), atol=5e-6)


def test_layers_are_counted_from_the_names():
    assert layers_of(small(layers=5)) == 5


def test_erf_is_within_its_stated_error():
    x = np.linspace(-6, 6, 200_001, dtype=np.float32)
    exact = np.asarray([math.erf(float(v)) for v in x])
    assert np.abs(erf(np, x) - exact).max() <= 4e-7
    wide = x.astype(np.float64)
    assert np.abs(erf(np, wide) - exact).max() <= 3e-8
    assert erf(np, x).dtype == np.float32


def test_erf_at_the_edges():
    edges = np.asarray([np.nan, np.inf, -np.inf, 0.0, -0.0], dtype=np.float32)
    got = erf(np, edges)
    assert np.isnan(got[0])
    np.testing.assert_allclose(got[1:3], [1, -1], atol=4e-7)
    assert got[3] == 0
    assert list(np.signbit(got[3:])) == [False, True]


def test_erf_prefers_the_namespaces_own():
    head = types.SimpleNamespace(erf=lambda x: ("own", x))
    assert erf(head, 2) == ("own", 2)


def test_random_weights_have_the_names_of_the_real_ones():
    names = set(small(layers=1))
    theirs = [
        "embeddings.word_embeddings.weight",
        "embeddings.position_embeddings.weight",
        "embeddings.token_type_embeddings.weight",
        "embeddings.LayerNorm.weight",
        "embeddings.LayerNorm.bias",
    ]
    for part in (
        "attention.self.query",
        "attention.self.key",
        "attention.self.value",
        "attention.output.dense",
        "attention.output.LayerNorm",
        "intermediate.dense",
        "output.dense",
        "output.LayerNorm",
    ):
        theirs += [f"encoder.layer.0.{part}.weight", f"encoder.layer.0.{part}.bias"]
    assert {weights.rename(name) for name in theirs} == names
    assert weights.rename("embeddings.position_ids") is None


@needs_model
def test_the_real_weights_have_the_documented_sizes():
    loaded = weights.load()
    assert layers_of(loaded) == 6
    assert loaded["words"].shape == (30522, 384)
    assert loaded["layer0.widen.matrix"].shape == (384, 1536)
    assert all(v.dtype == np.float32 and v.flags.c_contiguous for v in loaded.values())


@pytest.mark.peer
@needs_model
def test_agrees_with_pytorch_on_the_real_weights():
    torch = pytest.importorskip("torch")
    loaded, (ids, mask) = weights.load(), batch(texts=5, length=23)
    model = torch_model.build(loaded)
    with torch.inference_mode():
        theirs = model(torch.from_numpy(ids), torch.from_numpy(mask)).numpy()
    np.testing.assert_allclose(minilm.encode(np, loaded, ids, mask), theirs, atol=1e-5)
