"""The corpus: large, the same every time, and nobody's business but the interpreter's."""

import subprocess
import sys

import pytest

from demo import corpus
from demo.corpus import Passage


@pytest.fixture(scope="module")
def passages():
    return corpus.collect()


def test_thousands_of_real_texts(passages):
    assert len(passages) > 4000
    names = {passage.name for passage in passages}
    assert {
        "csv.reader",
        "json.loads",
        "os.path.join",
        "collections.Counter.most_common",
        "xml.etree.ElementTree",
    } <= names
    assert all(len(passage.text) >= corpus.SHORTEST for passage in passages)


def test_each_text_and_each_name_once(passages):
    assert len({passage.text for passage in passages}) == len(passages)
    assert len({passage.name for passage in passages}) == len(passages)


def test_the_same_every_time(passages):
    assert corpus.collect() == passages


def test_modules_with_side_effects_stay_out(passages):
    tops = {passage.name.partition(".")[0] for passage in passages}
    assert not tops & corpus.SKIPPED
    assert tops <= sys.stdlib_module_names
    assert not [top for top in tops if top.startswith("_")]


def test_the_users_folder_and_environment_change_nothing(passages, tmp_path, monkeypatch):
    (tmp_path / "csv.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    assert corpus.collect() == passages


def test_our_process_imports_nothing_for_it():
    code = (
        "import sys; from demo import corpus; before = set(sys.modules); corpus.collect();"
        "print(len({'imaplib', 'mailbox', 'antigravity'} & set(sys.modules)))"
    )
    root = corpus.__file__.rsplit("/demo/", 1)[0]
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": root},
    )
    assert done.stdout.strip() == "0"


def test_a_failing_interpreter_is_reported(monkeypatch, tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("raise ValueError('out of order')")
    monkeypatch.setattr(corpus, "__file__", str(broken))
    with pytest.raises(RuntimeError, match="out of order"):
        corpus.collect()


def test_sample_is_spread_and_repeatable():
    some = [Passage(str(number), "text") for number in range(10)]
    assert [p.name for p in corpus.sample(some, 3)] == ["0", "3", "6"]
    assert corpus.sample(some, 10) == corpus.sample(some, 99) == some


def test_what_is_no_documentation_is_left_out():
    assert corpus.inspect_docstring("x", None) is None
    assert corpus.inspect_docstring("x", 3) is None
    assert corpus.inspect_docstring("x", "Return self.") is None


def test_summary_is_the_first_paragraph_on_one_line():
    assert Passage("n", "One\nline.\n\nMore.").summary == "One line."
    assert Passage("n", "Text.").searchable == "n: Text."
