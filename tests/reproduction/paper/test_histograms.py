"""Histograms of scores: known counts, and a picture that stands."""

import numpy as np
import pytest

from opu.prediction import Prediction
from reproduction.paper.histograms import NUM_BINS, count_scores
from reproduction.rendering.score_histograms import draw_histograms


def predicted(scores):
    values = np.asarray(scores, dtype=float)
    each = {"negative_log_precision": -values, "novelty": values}
    return Prediction(np.full((len(values), 2), 0.5), each)


def test_every_input_is_counted_once_and_ends_hold_what_lies_beyond():
    inside, outside = predicted(np.linspace(0, 1, 1000)), {"noise": predicted([*np.full(99, 0.5), 1e6])}
    found = count_scores(inside, outside)["novelty"]
    edges, counts = np.asarray(found["edges"]), found["counts"]
    assert len(edges) == NUM_BINS + 1
    assert np.allclose(np.diff(edges), edges[1] - edges[0], atol=2e-4)
    assert sum(counts["test"]) == 1000
    assert sum(counts["noise"]) == 100
    assert counts["noise"][-1] == 1
    middle = int(np.searchsorted(edges, 0.5)) - 1
    assert sum(counts["noise"][middle - 1 : middle + 2]) == 99


def test_scores_that_are_all_alike_have_bins_too():
    found = count_scores(predicted(np.ones(10)), {"noise": predicted(np.ones(5))})
    assert sum(found["novelty"]["counts"]["test"]) == 10


def test_a_picture_is_drawn_from_what_a_result_file_holds(tmp_path):
    row = {
        "histograms": count_scores(predicted(np.linspace(-2, 2, 100)), {"noise": predicted(np.linspace(1, 5, 50))}),
        "ood": {"noise": {"novelty": {"auroc": 98.5}}},
    }
    draw_histograms({"ours": row}, [("ours", "ours", "novelty")], ["noise"], tmp_path / "scores.png")
    assert (tmp_path / "scores.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(KeyError):
        draw_histograms({"ours": row}, [("ours", "ours", "novelty")], ["letters"], tmp_path / "other.png")
