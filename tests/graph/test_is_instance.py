"""A graph is an instance of another if substituting sizes in that one gives it."""

import pytest

from smelt.graph.is_instance import match_instance
from smelt.graph.text import parse


def counted(a, b, message, value="0.0"):
    """A graph that knows a size, with a margin of one value."""
    return parse(f"""graph f(x: f32[{a},2], y: f32[{b},2]) {{
  v0 = size() {{expr={message}, dtype=f32}}
  v1 = mul(x, v0)
  v2 = pad(y) {{low=(0, 1), high=(0, 0), value={value}}}
  return v1, v2
}}""")


@pytest.mark.parametrize(
    ("special", "names"),
    [
        (counted("m", "m", "m*m"), {"n0": "m", "n1": "m"}),
        (counted("5", "m", "m*5"), {"n0": "5", "n1": "m"}),
        (counted("0", "m", "0"), {"n0": "0", "n1": "m"}),
        (counted("m", "n", "m"), None),
        (counted("m", "n", "m*n", value="-0.0"), None),
    ],
    ids=["one size", "a number", "no elements", "another size", "another zero"],
)
def test_sizes_are_put_in(special, names):
    actual = match_instance(counted("n0", "n1", "n0*n1"), special)
    assert (actual and {n: str(e) for n, e in actual.items()}) == names


def test_a_size_that_is_known_is_a_number():
    """A trace with numbers counts with constants; only one with the right value will do."""
    general = counted("n0", "n1", "n0*n1")
    for value, actual in (("15.0", {"n0": 5, "n1": 3}), ("16.0", None)):
        special = parse(f"""graph f(x: f32[5,2], y: f32[3,2]) {{
  v1 = mul(x, {value}:f32)
  v2 = pad(y) {{low=(0, 1), high=(0, 0), value=0.0}}
  return v1, v2
}}""")
        assert match_instance(general, special) == actual


@pytest.mark.parametrize("operator", ["//", "%"])
def test_a_graph_without_elements_is_none_of_one_that_divides_by_their_number(operator):
    general = counted("n0", "n1", f"n0{operator}n1")
    assert match_instance(general, counted("n0", "0", "n0")) is None
    assert match_instance(general, counted("6", "3", "2" if operator == "//" else "0"))
