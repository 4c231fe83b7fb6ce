"""Models without a package: a diffusion block, generation with a cache, and the demo's encoder."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.frontends.torch.models import seeded  # noqa: E402
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402

import smelt.torch  # noqa: E402
from bench.diffusion import diffusion_block  # noqa: E402
from demo import torch_model, weights  # noqa: E402


@pytest.fixture(autouse=True)
def inference(strict):
    with torch.no_grad():
        yield


def test_a_block_of_a_diffusion_model():
    model = seeded(diffusion_block, 8, 2)
    with smelt.torch.record() as record:
        fast = torch.compile(model, backend="smelt", fullgraph=True)
        for batch in (2, 3, 5):
            x, t = torch.randn(batch, 8, 6, 4), torch.randn(batch, 6)
            torch.testing.assert_close(fast(x, t), model(x, t), rtol=1e-4, atol=1e-5)
    assert not record.left


@pytest.mark.filterwarnings("ignore")
def test_generation_with_a_cache_runs_one_plan_for_every_length():
    T = pytest.importorskip("transformers")
    config = T.GPT2Config(
        n_embd=32, n_layer=1, n_head=4, vocab_size=99, bos_token_id=1, eos_token_id=2
    )
    model = seeded(T.GPT2LMHeadModel, config)
    counter = CompileCounterWithBackend("smelt")
    fast = torch.compile(model, backend=counter)

    def generate(call):
        ids, cache, results = torch.tensor([[3, 4, 5, 6]]), T.DynamicCache(), []
        for _ in range(9):
            result = call(input_ids=ids, past_key_values=cache, use_cache=True)
            cache, ids = result.past_key_values, result.logits[:, -1:].argmax(-1)
            results.append(result.logits[:, -1])
        return torch.cat(results)

    torch.testing.assert_close(generate(fast), generate(model), rtol=1e-4, atol=1e-5)
    assert counter.frame_count <= 3  # the prompt, a token, a token after any number of others


def test_the_encoder_of_the_demo():
    try:
        model = torch_model.build(weights.load())
    except (ImportError, FileNotFoundError, RuntimeError) as error:
        pytest.skip(f"the demo's weights are not here: {error}")
    fast = torch.compile(model, backend="smelt", fullgraph=True, dynamic=True)
    for batch, length in ((2, 7), (3, 12)):
        ids = torch.randint(1000, 5000, (batch, length))
        mask = torch.ones(batch, length, dtype=torch.bool)
        mask[0, -2:] = False
        torch.testing.assert_close(fast(ids, mask), model(ids, mask), rtol=1e-4, atol=1e-5)


def test_windows_of_open_sizes():
    """Windows of unknown sizes compile.

    A batch of windows is a product of quotients, each of which a prover may take for 0.
    """

    def windows(x):
        b, h, w, c = x.shape
        y = x.view(b, h // 4, 4, w // 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, c)
        scores = (y @ y.mT).view(b, -1, 16, 16) + torch.zeros(h // 4 * (w // 4), 16, 16)
        return scores.view(-1, 16, 16).softmax(-1)

    call = torch.compile(windows, backend="smelt", dynamic=True)
    for shape in ((2, 8, 8, 6), (3, 12, 8, 6), (1, 4, 4, 6)):
        x = torch.randn(shape)
        torch.testing.assert_close(call(x), windows(x), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("strict")
def test_rows_of_ragged_lengths():
    """The ragged dimension of a nested tensor is a name, not a number of any call."""
    linear = torch.nn.Linear(4, 6)
    call = torch.compile(lambda x: torch.relu(linear(x)) * 2, backend="smelt")
    for lengths in ((3, 5), (2, 7, 1)):
        parts = [torch.randn(n, 4) for n in lengths]
        result = call(torch.nested.nested_tensor(parts, layout=torch.jagged))
        for mine, part in zip(result.unbind(), parts, strict=True):
            torch.testing.assert_close(mine, torch.relu(linear(part)) * 2)
