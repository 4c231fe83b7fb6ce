"""Models written by hand: one program for all sizes, control flow, recurrence, opsets, errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.onnx.build import graph, model, node, port

import smelt as sm
import smelt.onnx
from smelt.errors import ArgumentError, OnnxFileError, OnnxTypeError, UnsupportedError

F, LONG, BOOL = np.float32, np.int64, np.bool_
RANDOM = np.random.default_rng(0)


def run(data: bytes, **feeds: Any) -> list[Any]:
    session = smelt.onnx.load(data, fallback="error")
    results = session.run(None, feeds)
    assert not session.reasons
    return results


def normal(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(F)


def test_shapes_computed_inside_are_expressions_of_one_program() -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["b"], axis=0),
        node("Gather", ["s", "one"], ["t"], axis=0),
        node("Unsqueeze", ["b", "axes"], ["b1"]),
        node("Mul", ["t", "two"], ["t2"]),
        node("Unsqueeze", ["t2", "axes"], ["t1"]),
        node("Concat", ["b1", "t1", "rest"], ["shape"], axis=0),
        node("Reshape", ["x", "shape"], ["y"]),
    ]
    constants = {
        "zero": np.array(0),
        "one": np.array(1),
        "two": np.array(2),
        "axes": np.array([0]),
        "rest": np.array([-1]),
    }
    data = model(nodes, [port("x", F, ["b", "t", 8])], [port("y")], constants)
    session = smelt.onnx.load(data)
    for b, t in ((2, 3), (4, 5), (7, 2)):
        x = normal(b, t, 8)
        (y,) = session.run(None, {"x": x})
        assert np.array_equal(y, x.reshape(b, t * 2, 4))
    (program,) = session.programs
    assert sum(len(traces) for traces in program.traces.values()) == 1


def test_a_model_is_saved_as_a_program(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", ["x.in", "w"], ["h"]),
        node("Softmax", ["h"], ["rows"], axis=-1),
        node("Reshape", ["rows", "shape"], ["flat"]),
    ]
    w = normal(8, 4)
    inputs = [port("x.in", F, ["batch size", "time", 8]), port("shape", LONG, [1])]
    data = model(nodes, inputs, [port("rows"), port("flat")], {"w": w})
    session = smelt.onnx.load(data)
    path = tmp_path / "model.smelt"
    with pytest.raises(ArgumentError, match="elements of shape decide"):
        session.save(path)
    session.save(path, values={"shape": [-1]})
    loaded: Any = sm.load(path)
    for b, t in ((3, 5), (1, 2), (1, 1), (4, 1)):
        x = normal(b, t, 8)
        rows, flat = session.run(None, {"x.in": x, "shape": [-1]})
        result = loaded(x_in=x)
        np.testing.assert_allclose(np.asarray(result["rows"]), rows, rtol=1e-5)
        np.testing.assert_allclose(np.asarray(result["flat"]), flat, rtol=1e-5)


def test_an_input_that_holds_a_shape_is_read_as_numbers() -> None:
    nodes = [node("Reshape", ["x", "shape"], ["y"])]
    data = model(nodes, [port("x", F, ["n"]), port("shape", LONG, [2])], [port("y")])
    for shape in ((2, 6), (3, -1), (0, 1)):
        x = normal(12)
        (y,) = run(data, x=x, shape=np.array(shape))
        assert np.array_equal(y, x.reshape(12 if shape[0] == 0 else shape[0], -1))


def branch(op: str) -> bytes:
    return graph([node(op, ["x", "x"], ["r"])], [], [port("r")])


def test_a_branch_on_a_scalar_argument_is_chosen_under_a_guard() -> None:
    nodes = [
        node("Equal", ["rate", "expected"], ["c"]),
        node("If", ["c"], ["y"], then_branch=branch("Add"), else_branch=branch("Mul")),
    ]
    inputs = [port("x", F, ["n"]), port("rate", LONG, [])]
    session = smelt.onnx.load(model(nodes, inputs, [port("y")], {"expected": np.array(16000)}))
    x = normal(5)
    for rate, want in ((16000, x + x), (8000, x * x), (16000, x + x)):
        assert np.array_equal(session.run(None, {"x": x, "rate": np.array(rate)})[0], want)
    assert not session.reasons


def test_a_branch_on_an_element_is_one_of_the_program() -> None:
    nodes = [node("If", ["c"], ["y"], then_branch=branch("Add"), else_branch=branch("Mul"))]
    data = model(nodes, [port("x", F, ["n"]), port("c", BOOL, [1])], [port("y")])
    x = normal(5)
    for c in (True, False):
        assert np.array_equal(run(data, x=x, c=np.array([c]))[0], x + x if c else x * x)


def loop_body() -> bytes:
    nodes = [node("Add", ["state", "x"], ["next"]), node("Identity", ["on"], ["go"])]
    nodes.append(node("Mul", ["next", "next"], ["square"]))
    ports = [port("k", LONG, []), port("on", BOOL, []), port("state", F, ["n"])]
    return graph(nodes, ports, [port("go"), port("next"), port("square")])


def test_a_loop_with_a_trip_count_is_one_of_the_program() -> None:
    nodes = [node("Loop", ["m", "", "start"], ["last", "all"], body=loop_body())]
    inputs = [port("x", F, ["n"]), port("start", F, ["n"])]
    x, start = normal(4), normal(4)
    for steps in (3, 100):
        data = model(nodes, inputs, [port("last"), port("all")], {"m": np.array(steps)})
        last, squares = run(data, x=x, start=start)
        states, expected = start, []
        for _ in range(steps):
            states = states + x
            expected.append(states * states)
        assert np.allclose(last, states, rtol=1e-5) and np.allclose(squares, expected, rtol=1e-5)


def test_scan_runs_backwards_along_another_axis() -> None:
    body = graph(
        [node("Add", ["s", "v"], ["t"]), node("Identity", ["t"], ["o"])],
        [port("s", F, [3]), port("v", F, [3])],
        [port("t"), port("o")],
    )
    nodes = [
        node(
            "Scan",
            ["s0", "x"],
            ["last", "all"],
            body=body,
            num_scan_inputs=1,
            scan_input_axes=[1],
            scan_input_directions=[1],
        )
    ]
    data = model(nodes, [port("s0", F, [3]), port("x", F, [3, "t"])], [port("last"), port("all")])
    s0, x = normal(3), normal(3, 6)
    last, everything = run(data, s0=s0, x=x)
    expected = s0 + np.cumsum(x[:, ::-1], axis=1).T
    assert np.allclose(everything, expected, atol=1e-5) and np.allclose(
        last, expected[-1], atol=1e-5
    )


def test_lstm_matches_its_definition() -> None:
    time, batch, width, hidden = 5, 2, 3, 4
    x, w, r = normal(time, batch, width), normal(1, 16, width), normal(1, 16, hidden)
    bias = normal(1, 32)
    nodes = [node("LSTM", ["x", "w", "r", "b"], ["y", "h", "c"], hidden_size=hidden)]
    data = model(
        nodes,
        [port("x", F, ["t", "b", width])],
        [port("y"), port("h"), port("c")],
        {"w": w, "r": r, "b": bias},
    )
    y, h, c = run(data, x=x)

    def sigmoid(v: Any) -> Any:
        return 1 / (1 + np.exp(-v))

    state = cell = np.zeros((batch, hidden), F)
    for k in range(time):
        gates = x[k] @ w[0].T + state @ r[0].T + bias[0, :16] + bias[0, 16:]
        i, o, f, g = np.split(gates, 4, axis=1)
        cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
        state = sigmoid(o) * np.tanh(cell)
        assert np.allclose(y[k, 0], state, atol=1e-5)
    assert np.allclose(h[0], state, atol=1e-5) and np.allclose(c[0], cell, atol=1e-5)


def test_dynamic_quantisation_is_an_integer_product() -> None:
    weight = RANDOM.integers(-100, 100, (16, 8)).astype(np.int8)
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        node("MatMulInteger", ["q", "w", "z"], ["i"]),
        node("Cast", ["i"], ["f"], to=1),
        node("Mul", ["s", "ws"], ["both"]),
        node("Mul", ["f", "both"], ["y"]),
    ]
    data = model(nodes, [port("x", F, ["n", 16])], [port("y")], {"w": weight, "ws": F(0.01)})
    x = normal(5, 16)
    low, high = min(x.min(), 0), max(x.max(), 0)
    scale = F((high - low) / F(255))
    zero = np.rint(np.clip(-low / scale, 0, 255))
    steps = np.clip(np.rint(x / scale) + zero, 0, 255)
    product = (steps - zero).astype(np.int64) @ weight.astype(np.int64)
    want = product.astype(F) * (scale * F(0.01))
    assert np.allclose(run(data, x=x)[0], want, rtol=1e-6)


@pytest.mark.parametrize("bits", [4, 8])
def test_weights_of_few_bits_are_unpacked_once(bits: int) -> None:
    n, k, block = 8, 32, 16
    codes = RANDOM.integers(0, 1 << bits, (n, k // block, block)).astype(np.uint8)
    packed = codes if bits == 8 else codes[..., 0::2] | codes[..., 1::2] << 4
    scales = np.abs(normal(n, k // block)) + F(0.1)
    nodes = [
        node(
            "MatMulNBits",
            ["x", "w", "s"],
            ["y"],
            "com.microsoft",
            N=n,
            K=k,
            bits=bits,
            block_size=block,
        )
    ]
    data = model(nodes, [port("x", F, ["m", k])], [port("y")], {"w": packed, "s": scales.ravel()})
    x = normal(3, k)
    weight = ((codes.astype(F) - (1 << (bits - 1))) * scales[:, :, None]).reshape(n, k)
    assert np.allclose(run(data, x=x)[0], x @ weight.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("opset", "old", "new"),
    [
        (7, node("Squeeze", ["x"], ["y"], axes=[1]), (np.squeeze, {"axis": 1})),
        (9, node("Slice", ["x"], ["y"], starts=[1], ends=[3], axes=[0]), None),
        (
            10,
            node("Clip", ["x"], ["y"], min=-0.5, max=0.5),
            (np.clip, {"a_min": -0.5, "a_max": 0.5}),
        ),
        (11, node("ReduceSum", ["x"], ["y"], axes=[0], keepdims=0), (np.sum, {"axis": 0})),
    ],
)
def test_attributes_of_older_opsets(opset: int, old: bytes, new: Any) -> None:
    x = normal(4, 1, 3)
    (y,) = run(model([old], [port("x", F, ["n", 1, 3])], [port("y")], opset=opset), x=x)
    want = x[1:3] if new is None else new[0](x, **new[1])
    assert np.allclose(y, want, atol=1e-6)


def test_softmax_before_opset_13_normalises_all_later_axes() -> None:
    x = normal(2, 3, 4)
    data = model([node("Softmax", ["x"], ["y"])], [port("x", F, [2, 3, 4])], [port("y")], opset=11)
    e = np.exp(x.reshape(2, -1))
    assert np.allclose(run(data, x=x)[0], (e / e.sum(1, keepdims=True)).reshape(x.shape), atol=1e-6)


def test_a_result_whose_size_depends_on_elements_is_evaluated_call_by_call() -> None:
    data = model([node("NonZero", ["x"], ["y"])], [port("x", F, ["n"])], [port("y")])
    session = smelt.onnx.load(data)
    for x in ([0, 1, 0, 2], [3, 0]):
        (y,) = session.run(None, {"x": np.array(x, F)})
        assert np.array_equal(y, [np.flatnonzero(x)])
    assert session.reasons


def test_names_choose_outputs() -> None:
    nodes = [node("Neg", ["x"], ["a"]), node("Abs", ["x"], ["b"])]
    session = smelt.onnx.load(model(nodes, [port("x", F, ["n"])], [port("a"), port("b")]))
    x = normal(3)
    (b,) = session.run(["b"], {"x": x})
    assert np.array_equal(b, abs(x))
    assert list(session(x=x)) == ["a", "b"]
    assert [a.name for a in session.get_inputs()] == ["x"]
    with pytest.raises(ArgumentError, match="no output 'c'"):
        session.run(["c"], {"x": x})
    with pytest.raises(ArgumentError, match="missing inputs x"):
        session.run(None, {})


def test_wrong_inputs_name_what_is_expected() -> None:
    session = smelt.onnx.load(
        model([node("Neg", ["x"], ["y"])], [port("x", F, ["n", 3])], [port("y")])
    )
    with pytest.raises(OnnxTypeError, match="x is float64, float32 expected"):
        session.run(None, {"x": np.zeros((2, 3))})
    with pytest.raises(OnnxTypeError, match=r"of shape \[2, 4\]"):
        session.run(None, {"x": np.zeros((2, 4), F)})
    assert session.run(None, {"x": [[1.0, 2.0, 3.0]]})[0].tolist() == [[-1, -2, -3]]


def test_operators_without_a_rule_are_listed_at_load() -> None:
    nodes = [node("Foo", ["x"], ["y"], "example"), node("Foo", ["y"], ["z"], "example")]
    with pytest.raises(UnsupportedError, match=r"example:Foo \(2\)"):
        smelt.onnx.load(model(nodes, [port("x", F, ["n"])], [port("z")]), fallback="error")


def test_a_node_that_does_not_fit_its_operator_is_named() -> None:
    data = model(
        [node("Transpose", ["x"], ["y"], perm=[5, 7])], [port("x", F, [2, 3])], [port("y")]
    )
    with pytest.raises(sm.errors.SmeltError, match=r"Transpose.*\(node 'y'\)"):
        smelt.onnx.load(data).run(None, {"x": normal(2, 3)})
    data = model([node("Concat", [], ["y"])], [port("x", F, [2, 3])], [port("y")])
    with pytest.raises(OnnxFileError, match=r"Concat \(node 'y'\)"):
        smelt.onnx.load(data).run(None, {"x": normal(2, 3)})


def test_repeated_feeds_find_their_program_and_others_are_checked() -> None:
    data = model([node("Neg", ["x"], ["y"])], [port("x", F, ["n", 3])], [port("y")])
    session = smelt.onnx.load(data)
    for k in range(4):
        x = normal(2 + k % 2, 3)
        (y,) = session.run(["y"], {"x": x})
        assert type(y) is np.ndarray and np.array_equal(y, -x)
    assert len(session.programs) == 1
    with pytest.raises(OnnxTypeError):
        session.run(["y"], {"x": np.ones((2, 3))})
    with pytest.raises(OnnxTypeError):
        session.run(["y"], {"x": normal(2, 4)})
    with pytest.raises(ArgumentError):
        session.run(["z"], {"x": normal(2, 3)})


@pytest.mark.parametrize("shift", range(4))
def test_weights_are_constants_wherever_they_lie(shift: int) -> None:
    """They are packed once, and repeated calls are native."""
    w, x = normal(256, 512), normal(100, 256)
    name = "x" * (1 + shift)  # before the weights
    data = model(
        [node("MatMul", [name, "w"], ["y"])], [port(name, F, ["n", 256])], [port("y")], {"w": w}
    )
    session = smelt.onnx.load(data)
    results = [session.run(None, {name: x})[0] for _ in range(4)]
    for y in results:
        np.testing.assert_allclose(y, x @ w, rtol=1e-4, atol=1e-3)
    (program,) = session.programs
    assert program.line is not None
    ((trace,),) = program.traces.values()
    assert [p.packed for p in trace.executable.executable.prelude.parts] == [True]


def test_a_number_that_decides_a_shape_keeps_its_sign() -> None:
    nodes = [
        node("Range", ["zero", "n", "one"], ["r"]),
        node("Size", ["r"], ["count"]),
        node("Reciprocal", ["n"], ["inverse"]),
    ]
    constants = {"zero": np.array(0, F), "one": np.array(1, F)}
    outputs = [port("count"), port("inverse")]
    session = smelt.onnx.load(model(nodes, [port("n", F, [])], outputs, constants))
    for number, inverse in ((0.0, np.inf), (-0.0, -np.inf), (0.0, np.inf)):
        assert session.run(None, {"n": np.array(number, F)}) == [0, inverse]


@pytest.mark.parametrize("numbers", [[1.5], [1j], ["a"], [256], [-1], [[1], [2, 3]]], ids=repr)
def test_lists_that_the_type_cannot_hold_are_refused(numbers: list[Any]) -> None:
    data = model([node("Identity", ["x"], ["y"])], [port("x", np.uint8, ["n"])], [port("y")])
    with pytest.raises(OnnxTypeError, match="x is a list"):
        smelt.onnx.load(data).run(None, {"x": numbers})


def test_names_that_differ_only_in_punctuation_are_saved_apart(tmp_path: Path) -> None:
    inputs = [port("x.1", F, ["n.a", 2]), port("x_1", F, ["n_a", 2])]
    data = model([node("Concat", ["x.1", "x_1"], ["y"], axis=0)], inputs, [port("y")])
    smelt.onnx.load(data).save(tmp_path / "model.smelt")
    f = sm.load(tmp_path / "model.smelt")
    assert np.asarray(f(normal(2, 2), normal(3, 2))["y"]).shape == (5, 2)
