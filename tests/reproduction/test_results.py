"""Result files of before are read in the words of today."""

import json

import pytest

from reproduction.results import in_todays_words, read, read_one


def test_keys_names_and_parts_of_names_are_mapped_at_every_depth():
    old = {
        "parts": {"pima (sound)": {"setup": {"preset": "sound", "strangers": "several"}}},
        "rows": ["BDK-MCDP (broadened)", "0.1*steady_kl + 10*mmd, slow bounds"],
        "link": "bounded",
        "alone_recorded": 1.5,
        "strangers_by_novelty": {"letters": 88.0},
    }
    assert in_todays_words(old) == {
        "parts": {"pima (standardised)": {"setup": {"preset": "standardised", "ood": "several"}}},
        "rows": ["BDK-MCDP (augmented)", "0.1*clipped_kl + 10*mmd, softsign link"],
        "link": "sigmoid",
        "alone_captured": 1.5,
        "ood_by_novelty": {"letters": 88.0},
    }


def test_a_row_of_the_comparison_keeps_both_its_sets_and_its_scores():
    row = {"errors": "least_confidence", "strangers": "strangeness", "ood": {"noise": {"strangeness": 1.0}}}
    assert in_todays_words(row) == {
        "error_score": "least_confidence",
        "ood_score": "feature_distance",
        "ood": {"noise": {"feature_distance": 1.0}},
    }


def test_words_of_today_stay():
    today = {"ood": {"noise": 1.0}, "link": "sigmoid(-2.0, 7.0)", "rows": ["OPU-MCDP (robust)"], "none": None}
    assert in_todays_words(today) == today


def test_a_file_is_found_under_its_former_name_unless_there_is_one_of_today(tmp_path):
    (tmp_path / "study-steady-kl.json").write_text(json.dumps({"made": "then"}))
    assert read_one(tmp_path, "study-clipped-kl.json", "make") == {"made": "then"}
    (tmp_path / "study-clipped-kl.json").write_text(json.dumps({"made": "now"}))
    assert read_one(tmp_path, "study-clipped-kl.json", "make") == {"made": "now"}
    for seed in (1, 0):
        (tmp_path / f"rivals-full-seed{seed}.json").write_text(json.dumps({"seed": seed}))
    assert read(tmp_path, "comparison-full-seed*.json", "make") == [{"seed": 0}, {"seed": 1}]


def test_a_missing_file_names_the_command(tmp_path):
    with pytest.raises(ValueError, match=r"there is no blr-seed\*\.json in .*; make it with: opu reproduce blr\."):
        read(tmp_path, "blr-seed*.json", "opu reproduce blr")
