"""Batches: every text once, little padding; token numbers as the real tokenizer gives them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demo import tokenise, weights
from demo.tokenise import load_batches, make_batches, padding_share, save_batches

TOKENS = st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=12), max_size=40)


@given(TOKENS, st.integers(1, 60))
def test_each_text_is_in_one_batch_unchanged(tokens, budget):
    batches = make_batches(tokens, budget=budget)
    rows = [row for batch in batches for row in batch.rows]
    assert sorted(rows) == list(range(len(tokens)))
    for batch in batches:
        assert batch.ids.shape == batch.mask.shape == (len(batch.rows), batch.ids.shape[1])
        for place, row in enumerate(batch.rows):
            assert batch.ids[place][batch.mask[place]].tolist() == tokens[row]
            assert not batch.ids[place][~batch.mask[place]].any()


@given(TOKENS, st.integers(12, 60))
def test_no_batch_is_over_budget_by_more_than_a_borrowed_neighbour(tokens, budget):
    batches = make_batches(tokens, budget=budget)
    assert all(batch.ids.size <= budget for batch in batches[:-1])
    assert all(batch.ids.size <= max(budget, 2 * 12) for batch in batches[-1:])


def test_a_last_text_is_not_left_alone():
    batches = make_batches([[1] * 4] * 7, budget=12)
    assert [len(batch.rows) for batch in batches] == [3, 2, 2]
    assert [len(batch.rows) for batch in make_batches([[1]], budget=8)] == [1]


def test_nothing_gives_nothing():
    assert make_batches([]) == []
    assert padding_share([]) == 0.0


def test_like_lengths_share_a_batch():
    lengths = np.random.default_rng(0).integers(3, 128, 500)
    assert padding_share(make_batches([[1] * int(n) for n in lengths])) < 0.08


def test_batches_survive_a_file(tmp_path):
    batches = make_batches([[1, 2], [3], [4, 5, 6], [7], [8, 9]], budget=4)
    save_batches(batches, tmp_path)
    for ours, theirs in zip(batches, load_batches(tmp_path), strict=True):
        assert ours.rows == theirs.rows
        np.testing.assert_array_equal(ours.ids, theirs.ids)
        np.testing.assert_array_equal(ours.mask, theirs.mask)
        assert theirs.ids.dtype == np.int64
        assert theirs.mask.dtype == np.bool_


@pytest.mark.skipif(bool(weights.missing()), reason="needs the extra `demo`")
def test_real_tokens():
    short, empty, long = tokenise.tokenise(["Read a CSV file", "", "word " * 500])
    # [CLS] read a cs ##v file [SEP] in the vocabulary of BERT, lower-cased.
    assert short == [101, 3191, 1037, 20116, 2615, 5371, 102]
    assert empty == [101, 102]
    assert len(long) == tokenise.LONGEST
    assert long[-1] == 102
