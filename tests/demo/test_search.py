"""Ranking, and that the real encoder finds what was meant."""

import numpy as np
import pytest

from demo import corpus, engines, search, tokenise, weights
from demo.corpus import Passage
from demo.search import Index


def test_best_first_and_ties_in_order():
    passages = [Passage(name, name) for name in "abcd"]
    embeddings = np.asarray([[0, 1], [1, 0], [1, 0], [-1, 0]], dtype=np.float32)
    actual = Index(passages, embeddings).nearest(np.asarray([1, 0], dtype=np.float32), 4)
    assert [answer.passage.name for answer in actual] == ["b", "c", "a", "d"]
    assert [answer.score for answer in actual] == [1.0, 1.0, 0.0, -1.0]


def test_asking_for_more_than_there_are_gives_all():
    index = Index([Passage("a", "a")], np.ones((1, 2), dtype=np.float32))
    assert len(index.nearest(np.ones(2, dtype=np.float32), 5)) == 1


@pytest.mark.parametrize("shape", [(2, 3), (3,)])
def test_as_many_embeddings_as_passages(shape):
    with pytest.raises(ValueError, match="1 passages need as many rows"):
        Index([Passage("a", "a")], np.zeros(shape, dtype=np.float32))


@pytest.mark.skipif(bool(weights.missing()), reason="needs the extra `demo`")
def test_questions_find_their_modules():
    wanted = {
        "read a csv file": "csv.reader",
        "split a path into folder and file name": "os.path.split",
        "pause the program for some seconds": "time.sleep",
    }
    every = corpus.collect()
    passages = [p for p in every if p.name in wanted.values()]
    passages += [p for p in corpus.sample(every, 40) if p.name not in wanted.values()]
    assert len(passages) >= 40
    texts = [*(passage.searchable for passage in passages), *wanted]
    running = engines.by_name("numpy").start(weights.load())
    vectors = np.empty((len(texts), 384), dtype=np.float32)
    for batch in tokenise.make_batches(tokenise.tokenise(texts)):
        vectors[list(batch.rows)] = running.encode(batch.ids, batch.mask)
    index = search.Index(passages, vectors[: len(passages)])
    actual = [index.nearest(vector, 3) for vector in vectors[len(passages) :]]
    assert actual[0][0].passage.name == "csv.reader"
    # Others may have a rival: threading.Timer, too, waits for some seconds.
    for name, answers in zip(wanted.values(), actual, strict=True):
        assert name in [answer.passage.name for answer in answers]
