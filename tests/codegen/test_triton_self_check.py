"""Printed files compare themselves with the interpreter: here by the stand-in of Triton."""

from __future__ import annotations

import numpy as np
import pytest
from tests.codegen import checked_triton
from tests.kernel.goldens import GOLDENS

from smelt.codegen.triton import self_check as checks
from smelt.codegen.triton.source import triton_source
from smelt.errors import NoDriverError
from smelt.kernel.text import parse
from smelt.kernel.text_print import text


@pytest.fixture(autouse=True)
def on_the_stand_in(monkeypatch):
    monkeypatch.setattr(checks, "_check_device", lambda: None)
    monkeypatch.setattr(checks, "_to_device", lambda array: array)
    monkeypatch.setattr(checks, "_to_host", np.asarray)


def launch_of(source):
    def launch(*arrays):
        results = checked_triton.launch(source, arrays, least_dot=1)
        return results if len(results) > 1 else results[0]

    return launch


@pytest.mark.parametrize("name", ["log_relu", "add_layernorm", "softmax_long", "adamw", "embed"])
def test_file_agrees_with_numpy(name, tmp_path, capsys):
    source = triton_source(parse(GOLDENS[name]))
    path = tmp_path / f"{name}.py"
    path.write_text(source)
    checks.self_check(str(path), launch_of(source))
    assert "agree with NumPy" in capsys.readouterr().out


def test_wrong_program_is_found(tmp_path):
    source = triton_source(parse(GOLDENS["add_layernorm"]))
    assert "tl.sum(" in source
    path = tmp_path / "wrong.py"
    path.write_text(source)
    wrong = source.replace("tl.sum(", "0.5 * tl.sum(", 1)
    with pytest.raises(AssertionError, match="y differs by"):
        checks.self_check(str(path), launch_of(wrong))


def test_a_machine_without_a_gpu_raises_an_error_that_says_so(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.undo()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(NoDriverError, match="finds none on this machine") as error:
        checks.self_check("no_file.py", launch_of(""))
    assert "smelt explain" in error.value.help


@pytest.mark.parametrize("name", GOLDENS)
def test_kernel_of_a_file_is_the_kernel_it_was_printed_from(name):
    kernel = parse(GOLDENS[name])
    assert text(checks.kernel_of(triton_source(kernel))) == text(kernel)
