"""Records, explanations and the comparison with eager code."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.frontends.torch.models import Encoder, seeded, tokens  # noqa: E402

import smelt.torch  # noqa: E402
from smelt.errors import ArgumentError, KnobError, UnknownNameError  # noqa: E402
from smelt.frontends.torch import table  # noqa: E402
from smelt.frontends.torch.row import Row  # noqa: E402
from smelt.graph import interp  # noqa: E402
from smelt.graph.text import parse  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh")


def test_every_kernel_is_tied_to_modules_lines_and_operators():
    model = seeded(Encoder, layers=1)
    with torch.no_grad():
        record = smelt.torch.explain(model, *tokens(3, 6), dynamic=True)
    (graph,) = record.graphs
    assert graph.kind == "inference"
    assert record.left == []
    kernels = record.kernels
    assert all(k.operators for k in kernels)
    assert {o for k in kernels for o in k.operators} >= {
        "aten.embedding.default",
        "aten.addmm.default",
        "aten.native_layer_norm.default",
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
        "aten.gelu.default",
    }
    assert {"layers.0.query", "layers.0.second"} <= {m for k in kernels for m in k.modules}
    assert all(Path(p.rpartition(":")[0]).name.endswith(".py") for k in kernels for p in k.places)
    assert sum(k.bytes for k in kernels) < sum(k.bytes_unfused for k in kernels)
    page = str(record)
    assert page.startswith("1 graph, 0 breaks: ")
    assert "layers.0" in page
    assert "models.py:" in page


def test_breaks_and_calls_of_torch_are_listed_with_their_reasons():
    def f(x):
        y = torch.sort(x * 2).values
        if y.sum().item() > 1e9:  # the value decides
            y = y + 1
        torch._dynamo.graph_break()
        return y + 3

    record = smelt.torch.explain(f, torch.randn(4, 5))
    assert len(record.graphs) >= 2
    assert record.breaks
    assert all(b.where.startswith(__file__) for b in record.breaks)
    (left, *_) = record.left
    assert left.operator == "aten.sort.default"
    assert left.reason == "no rule for aten.sort.default"
    assert "test_explain.py" in left.where
    assert "torch: aten.sort.default x1, no rule for" in str(record)
    assert "breaks" in str(record)


def test_a_function_that_runs_eagerly_is_reported():
    """A size that the data decides, in a loop: Dynamo traces nothing of the function."""

    def routed(x, at):
        y = torch.zeros_like(x)
        for k in range(2):
            (rows,) = torch.where(at == k)
            y = y.index_add(0, rows, x[rows] * k)
        return y

    x, at = torch.randn(6, 3), torch.tensor([0, 1, 1, 0, 1, 0])
    record = smelt.torch.explain(routed, x, at)
    assert not record.graphs
    (actual,) = record.breaks
    assert "runs eagerly" in actual.reason
    assert actual.where.startswith(__file__)
    assert "runs eagerly" in str(record)


def test_a_record_has_what_was_compiled_while_it_was_open():
    fast = torch.compile(lambda x: torch.exp(x) + 1, backend="smelt", dynamic=False)
    with smelt.torch.record() as record:
        fast(torch.randn(4))
        fast(torch.randn(4))
    fast(torch.randn(4, 5))
    assert len(record.graphs) == 1
    assert record.kernels[0].operators == ("aten.exp.default", "aten.add.Tensor")


def test_graphs_are_logged(caplog):
    def f(x):
        return torch.sort(x * 2).values

    with caplog.at_level("DEBUG", logger="smelt.torch"):
        torch.compile(f, backend="smelt", dynamic=False)(torch.randn(4, 5))
    reported = [r.getMessage() for r in caplog.records if r.name == "smelt.torch"]
    assert reported[0].startswith("inference graph of 3 operators: 1 kernels, 1 calls of torch")
    assert reported[1].startswith(
        "aten.sort.default is left to torch: no rule for aten.sort.default"
    )


def test_forward_and_backward_are_distinguished():
    model = torch.nn.Linear(3, 2)
    with smelt.torch.record() as record:
        torch.compile(model, backend="smelt")(torch.randn(4, 3)).sum().backward()
    assert [g.kind for g in record.graphs] == ["forward", "backward"]


def test_an_accurate_model_has_no_difference():
    assert smelt.torch.check(seeded(Encoder, layers=1), *tokens(2, 5)) is None


class Counting(torch.nn.Module):
    """Every call changes what the next one gives."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.ones(3))
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x):
        self.count = self.count * 2
        self.seen[:] = x[0] * self.count
        return self.seen, x * self.count


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch looks at the gradient of that buffer
def test_every_run_of_a_check_starts_from_the_same_buffers():
    model, x = Counting(), torch.randn(2, 3)
    assert smelt.torch.check(model, x) is None
    assert torch.equal(model.count, torch.ones(3))
    assert torch.equal(model.seen, torch.zeros(3))
    model(x.requires_grad_())  # autograd follows the buffer from here on
    assert smelt.torch.check(model, x.detach()) is None


def test_the_first_operator_that_differs_is_found(monkeypatch, tmp_path):
    def wrong(c, x):
        return x.map("tanh") * 1.001

    monkeypatch.setitem(table.TABLE, "aten.tanh.default", Row("aten.tanh.default", wrong))
    actual = smelt.torch.check(lambda x: torch.tanh(torch.exp(x)).sum(-1), torch.randn(3, 4))
    assert actual is not None
    assert actual.result == 0
    assert actual.operator == "aten.tanh.default"
    assert "test_explain.py" in actual.where
    assert "first at aten.tanh.default" in str(actual)
    actual.write(tmp_path / "repro.smelt")
    graph = parse((tmp_path / "repro.smelt").read_text())
    (got,) = interp.run(graph, [np.ones((3, 4), np.float32)])
    np.testing.assert_allclose(got, np.tanh(1.0) * 1.001, rtol=1e-6)


def test_settings_are_those_of_smelt():
    fast = torch.compile(lambda x: x + 1, backend="smelt", options={"threads": 1, "fuse": False})
    assert torch.equal(fast(torch.ones(3)), torch.full((3,), 2.0))
    for mode in smelt.torch.MODES:
        torch._dynamo.reset()
        assert torch.compile(lambda x: x - 1, backend="smelt", mode=mode)(torch.ones(3)).sum() == 0
    with pytest.raises(Exception, match="threds") as caught:
        torch.compile(lambda x: x + 2, backend="smelt", options={"threds": 1})(torch.ones(3))
    assert isinstance(caught.value.__cause__ or caught.value, (KnobError, Exception))
    assert issubclass(ArgumentError, ValueError)
    with pytest.raises(Exception, match="max-speed"):
        torch.compile(lambda x: x + 3, backend="smelt", mode="max-speed")(torch.ones(3))


def test_the_package_s_own_name_records():
    with smelt.record() as record:
        torch.compile(lambda x: x * 2 + 1, backend="smelt")(torch.ones(7))
    assert len(record.graphs) == 1


def test_without_pytorch_the_name_says_what_is_missing(monkeypatch):
    def missing(name: str):
        raise ModuleNotFoundError(f"No module named {name!r}", name="torch")

    monkeypatch.setattr(smelt, "fork_safe_import", missing)
    with pytest.raises(AttributeError, match="needs PyTorch"):
        _ = smelt.record
    assert not hasattr(smelt, "record")


def test_decisions_are_queried_by_pytorch_names():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = torch.nn.Linear(16, 64), torch.nn.Linear(64, 16)

        def forward(self, x):
            return self.down(torch.nn.functional.gelu(self.up(x)))

    with torch.no_grad():
        record = smelt.torch.explain(Model(), torch.randn(8, 16))
    (report,) = record.graphs[0].reports()
    requested = record.why("aten.addmm", "aten.gelu.default")
    assert report.why("addmm", "gelu").reasons == requested.reasons != ()
    answer = record.why("up", "aten.gelu")
    assert answer.together and "test_explain.py" in str(answer)
    assert record.why("up", "down").a != record.why("down", "up").a
    with pytest.raises(UnknownNameError, match="softmax"):
        record.why("softmax", "gelu")


def test_modules_are_named_by_their_paths():
    """PyTorch's own variable for it, or the user's, stood in front of the path."""
    x = torch.randn(3, 4)
    model, other = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU()), torch.nn.Tanh()
    with torch.no_grad():
        for f in (model, model.forward, lambda y: model(y)):  # noqa: PLW0108
            record = smelt.torch.explain(f, x)
            assert {m for k in record.kernels for m in k.modules} == {"0", "1"}
            assert record.why("0", "1").reasons
        record = smelt.torch.explain(lambda x: other(model(x)), x)
        reported = {m for k in record.kernels for m in k.modules}
    assert reported == {"model.0", "model.1", "other"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_are_measured_on_what_the_call_gives(dtype):
    """Before a call of torch and behind it, with an argument that is written, in one call."""

    def f(x, i):
        y = torch.sort(x * 2, -1).values
        x.mul_(2)
        return (y + x)[i]

    torch.manual_seed(0)
    x, i = torch.randn(6, 9).to(dtype), torch.tensor([5, 0, 3])
    inputs = x.clone()
    with smelt.torch.record() as plain:
        torch.compile(f, backend="smelt")(inputs.clone(), i)
    record = smelt.torch.explain(f, inputs, i)
    torch.testing.assert_close(inputs, x * 2)
    assert {k.measured_ns for k in plain.kernels} == {None}
    assert len(record.kernels) == len(plain.kernels) > 1
    assert all(k.measured_ns is not None and k.measured_ns >= 0 for k in record.kernels)
    for report in record.graphs[0].reports():
        assert report.data.total.measured.runs > 1
        assert report.to_data()["kernels"][0]["measured"]["median_ns"] >= 0
    assert " us  saved" in str(record) or " ns  saved" in str(record)
    assert "s a call" in str(record)


def test_graphs_with_constants_in_another_order_and_sizes_are_measured():
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    model[0].weight.data = model[0].weight.data.T.contiguous().T
    with torch.no_grad():
        for dynamic in (False, True):
            record = smelt.torch.explain(model, torch.randn(5, 8), dynamic=dynamic)
            assert all(k.measured_ns is not None for k in record.kernels)
    record = smelt.torch.explain(lambda x: x.exp().sum(), torch.randn(3), dynamic=False)
    assert record.kernels[0].measured_ns is not None
    record = smelt.torch.explain(model, torch.randn(5, 8))  # whose backward graph is not called
    assert {g.kind: bool(g.times) for g in record.graphs}["forward"]


def test_a_loss_without_gradients_stores_no_logits():
    """The labels of a module's loss are one for each row, whatever the batch."""
    head = torch.nn.Linear(64, 5000, bias=False)
    h, y = torch.randn(512, 64), torch.randint(0, 5000, (512,))
    with torch.no_grad():
        record = smelt.torch.explain(
            lambda h, y: torch.nn.functional.cross_entropy(head(h), y), h, y
        )
    (report,) = record.graphs[0].reports()
    assert report.data.total.bytes_unfused > 10 * 512 * 5000
    assert report.data.memory.temp < 512 * 5000


def test_a_record_has_a_page_with_its_parts_one_after_another(tmp_path):
    def f(x, w):
        return torch.softmax(torch.linalg.qr(torch.nn.functional.gelu(x @ w))[0] @ w, -1)

    record = smelt.torch.explain(f, torch.randn(32, 16), torch.randn(16, 16))
    saved = record.save(tmp_path / "model.html", code=False).read_text()
    reports = [report for g in record.graphs for report in g.reports()]
    assert len(reports) == 2
    for k, report in enumerate(reports):
        assert f'id="report-{k}"' in saved and f"graph {k + 1} of {len(reports)}" in saved
        assert report.data.kernels[0].text
    assert "aten.linalg_qr" in saved
    assert record._repr_html_().count("<iframe") == 1
    parts = json.loads(record.save(tmp_path / "model.json").read_text())
    assert [p["report"]["name"] for p in parts] == [r.data.name for r in reports]
    assert record.why("mm", "gelu").together


def test_a_record_without_a_graph_says_so(tmp_path):
    with smelt.torch.record() as record:
        pass
    with pytest.raises(ArgumentError, match="no graph of this record was compiled"):
        record.save(tmp_path / "x.html")
    assert record._repr_html_().startswith("<pre>")
    with pytest.raises(ArgumentError, match=r"a name in \.html or \.json"):
        record.save(tmp_path / "x.txt")
