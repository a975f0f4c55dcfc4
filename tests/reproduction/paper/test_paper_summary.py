"""Tables from made-up records: every cell can be worked out by hand."""

import io

from rich.console import Console

from reproduction.paper.summary import beside_the_paper, detection, goal, show

TIMES = {"seconds": {"mc_dropout": {"naive_loop": 2.0}, "opu": {"one_pass": 0.004}, "bdk": {"one_pass": 0.002}}}


def entry(auroc, aupr=50.0):
    return {"auroc": auroc, "aupr": aupr, "fpr95": 1.0}


def record(shift):
    teacher = {
        "row": {"kind": "pointwise", "teacher": "mc_dropout", "divergence": "kl", "preset": ""},
        "accuracy": 98.0 + shift,
        "misclassification": {
            "base_rate": 2.0,
            "predictive_entropy": entry(97.0),
            "least_confidence": entry(96.0),
            "mutual_information": entry(99.0),
            "differential_entropy": entry(50.0),
            "negative_log_precision": entry(60.0),
        },
    }
    teacher["ood"] = {"omniglot": {**teacher["misclassification"], "differential_entropy": None}}
    student = {
        "row": {"kind": "opu", "teacher": "mc_dropout", "divergence": "mmd", "preset": "paper"},
        "accuracy": 97.0,
        "misclassification": {
            "base_rate": 3.0,
            "predictive_entropy": entry(90.0 + shift),
            "least_confidence": entry(80.0),
            "negative_log_precision": entry(30.0),
            "novelty": entry(91.0),
        },
    }
    student["ood"] = {"omniglot": {**student["misclassification"], "negative_log_precision": entry(100.0, 99.0)}}
    return {
        "table": "mnist",
        "domain": "mnist",
        "scale": {"name": "full"},
        "rows": {"MCDP-KL": teacher, "OPU-MCDP-MMD (paper)": student},
        "trivial": {"omniglot": {"mean": 70.0 + shift, "norm": 60.0}},
    }


def test_ours_stand_beside_the_paper_s_with_spread_and_measure():
    header, lines = beside_the_paper([record(-0.5), record(0.5)], TIMES)
    assert header == [
        "", "accuracy", "errors AUROC", "errors AUPR", "Omniglot AUROC", "Omniglot AUPR", "test set in",
    ]  # fmt: skip
    # The mutual information is not among the measures that the paper chooses from; a measure without a value is not either.
    assert lines[0] == [
        "MCDP-KL", "98.0 ± 0.7 (97.9)", "97.0 ± 0.0 E (97.3 E)", "50.0 ± 0.0 E (43.0 E)", "97.0 ± 0.0 E (99.4 D)",
        "50.0 ± 0.0 E (99.7 D)", "2.00 s (210.6 s)",
    ]  # fmt: skip
    assert lines[1][2] == "90.0 ± 0.7 E (97.2 P)"
    assert lines[1][4:] == ["100.0 ± 0.0 C (100.0 C)", "99.0 ± 0.0 C (100.0 C)", "4.00 ms (0.443 s)"]


def test_the_second_table_fixes_its_scores_and_shows_the_best_trivial_one():
    header, lines = detection([record(0.0)])
    assert header == ["", "errors", "Omniglot"]
    assert lines == [
        ["MCDP-KL: best of E, P, MI", "99.0 MI", "99.0 MI"],
        ["MCDP-KL: D", "50.0", "none"],
        ["MCDP-KL: C", "60.0", "60.0"],
        ["OPU-MCDP-MMD (paper): E", "90.0", "90.0"],
        ["OPU-MCDP-MMD (paper): C", "30.0", "100.0"],
        ["OPU-MCDP-MMD (paper): N", "91.0", "91.0"],
        ["best trivial detector", "", "70.0"],
    ]


def test_a_seed_that_lacks_a_row_is_left_out_of_its_mean():
    second = record(1.0)
    del second["rows"]["MCDP-KL"]
    _, lines = beside_the_paper([record(0.0), second], TIMES)
    assert lines[0][1] == "98.0 (97.9)"


def test_the_terminal_shows_both_tables_whole():
    text = io.StringIO()
    show([record(0.0)], TIMES, Console(file=text, width=40))
    assert "100.0 C (100.0 C)" in text.getvalue()
    assert "best trivial detector" in text.getvalue()
    assert "Domain mnist, full scale, 1 seed." in text.getvalue()


def test_our_students_are_held_against_the_best_of_their_own_teachers():
    def of(shift):
        made = record(shift)
        student = made["rows"].pop("OPU-MCDP-MMD (paper)")
        student["row"] = {"kind": "opu", "teacher": "mc_dropout", "divergence": "any", "preset": "robust"}
        alone = {**student, "row": {**student["row"], "teacher": "sgld"}}  # whose teacher is not there
        rows = {**made["rows"], "OPU-MCDP (robust)": student, "OPU-SGLD (robust)": alone}
        return {**made, "table": "mnist-robust", "rows": rows}

    header, lines = goal([of(-0.5), of(0.5)])
    assert header == ["", "accuracy", "errors", "Omniglot"]
    # The teacher's best is MI, at 99 on both.
    assert lines == [
        ["OPU-MCDP (robust): N", "-1.00", "-8.0", "-8.0"],
        ["OPU-MCDP (robust): C", "-1.00", "-69.0", "+1.0"],
        ["OPU-MCDP (robust): P", "-1.00", "-19.0", "-19.0"],
    ]
