"""The rules that the study of selection compares, on losses whose answers can be worked out by hand."""

import json

import numpy as np
import torch

from reproduction.rendering import render
from reproduction.studies.selection import _against, rules


def test_each_rule_keeps_the_epoch_it_names():
    held_out = np.tile(np.linspace(0.0, 1.0, 20), (4, 1)) + np.array([[3.0], [2.0], [1.0], [1.5]])
    held_out[2, 0] += 100  # one input ruins the mean of the best epoch
    found = rules(held_out, 3)
    assert found["ours"] == 3
    assert found["lowest mean"] == 3
    assert found["lowest median"] == 2
    assert found["lowest mean, a tenth trimmed at both ends"] == 2
    assert found["last, unless the lowest mean is 2 standard errors below"] == 3


def test_differences_from_the_last_epoch_come_with_their_standard_errors():
    last, other = torch.zeros(4).double(), torch.tensor([1.0, 3.0, 1.0, 3.0]).double()
    found = _against({"NLL": last}, {"NLL": other})
    assert found["less_last"]["NLL"] == 2
    assert abs(found["standard_error"]["NLL"] - (4 / 3) ** 0.5 / 2) < 1e-12


def test_the_table_counts_what_is_beyond_noise(tmp_path):
    def rule(epoch, difference):
        values = dict.fromkeys(("objective", "KL", "NLL", "errors"), 1.0)
        return {
            "epoch": epoch,
            "mean": values | {"KL": 1.0 + difference},
            "less_last": values | {"KL": difference},
            "standard_error": dict.fromkeys(values, 1.0) | {"KL": 0.4},
        }

    runs = [{"epochs": 10, "rules": {"last": rule(10, 0.0), "ours": rule(9, d)}} for d in (1.0, 0.7, -0.9)]
    (tmp_path / "study-selection.json").write_text(json.dumps({"runs": runs, "shaken": runs[:1]}))
    text = render("<!-- table: selection -->\n<!-- end -->", tmp_path)
    assert "| ours | 3 | 90 | 0 / 0 | 1 / 1 | 0 / 0 | 2.00 |" in text
    assert "our rule keeps the epochs 9 of 10, with a KL of 2.00 instead of the last epoch's 1.0" in text
