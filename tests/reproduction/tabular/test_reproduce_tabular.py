"""Tables 3 and 4: a part is kept when it is there, and every cell of the tables can be worked out by hand."""

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from rich.console import Console

from reproduction.tabular import reproduce as module
from reproduction.tabular.models import spaced, training
from reproduction.tabular.reproduce import reproduce_tabular
from reproduction.tabular.summary import beside_the_paper, bound, detection, gaps, mixing, show, speed

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_pima_by_the_papers_recipe(tmp_path, data_folder, monkeypatch):
    monkeypatch.setenv("OPU_DATA", str(data_folder))
    (record,) = reproduce_tabular("blr", tmp_path, seeds=[0], rows=["pima (paper"], quick=True)
    assert json.loads((tmp_path / "blr-seed0.json").read_text()) == record
    part = record["parts"]["pima (paper)"]
    assert list(part["rows"]) == ["PG", "CA-PG", "OPU-PG", "OPU-PG (closest)"]
    assert part["mixing"]["coefficients"]["max_r_hat"] < 1.05
    teacher, student = part["rows"]["PG"], part["rows"]["OPU-PG"]
    assert abs(student["accuracy"] - teacher["accuracy"]) < 5
    # The data have no negative part, and half of every OOD input is negative.
    assert part["trivial"]["gaussian"]["negative_part"] > 95
    monkeypatch.setattr(module, "_one", lambda *_: pytest.fail("it was made again"))
    assert reproduce_tabular("blr", tmp_path, seeds=[0], rows=["pima (paper"])[0]["parts"] == record["parts"]
    path = tmp_path / "blr-parts" / "pima-paper-seed0.json"
    for key, value in (("setup", {"prior_variance": 2.0}), ("rows", {})):
        path.write_text(json.dumps({**part, key: {**part[key], **value} if value else {}}))
        with pytest.raises(ValueError, match="was made with other settings"):
            reproduce_tabular("blr", tmp_path, seeds=[0], rows=["pima (paper"])


PARENT = """
import os, time
from reproduction.tabular.reproduce import worker_pool
if __name__ == "__main__":
    with worker_pool(1) as pool:
        print(pool.submit(os.getpid).result(), flush=True)
        pool.submit(time.sleep, 600).result()
"""


@pytest.mark.slow
def test_workers_leave_when_their_parent_is_killed(tmp_path):
    (tmp_path / "parent.py").write_text(PARENT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, tmp_path / "parent.py"], env=environment, stdout=subprocess.PIPE) as parent:
        worker = Path("/proc") / parent.stdout.readline().decode().strip()
        assert worker.exists()
        parent.kill()
    deadline = time.monotonic() + 60
    while worker.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not worker.exists()


def test_a_teacher_holds_evenly_spaced_draws_of_every_chain():
    assert spaced(12, 4, 2).tolist() == [0, 1, 6, 7]
    chosen = spaced(5000, 500, 2)
    assert len(chosen) == 500
    assert (chosen % 2).float().mean() == 0.5  # chains take turns in a pool
    assert set(chosen[::2].diff().tolist()) == {20}


def test_an_unknown_part_is_refused(tmp_path):
    parts = r"the parts, each with all its rows, are pima \(paper\), pima \(standardised\)"
    with pytest.raises(ValueError, match=f"no part of gp has 'iris' in its name; {parts}"):
        reproduce_tabular("gp", tmp_path, seeds=[0], rows=["iris"], quick=True)


def entry(auroc):
    return {"auroc": auroc, "aupr": auroc - 10, "fpr95": 1.0}


def record(shift):
    teacher = {m: entry(60.0 + shift) for m in ("predictive_entropy", "least_confidence")}
    teacher |= {"mutual_information": entry(70.0), "base_rate": 20.0}
    student = teacher | {"negative_log_precision": entry(90.0), "novelty": entry(80.0)}

    def row(cells, sets):
        return {
            "accuracy": 75.0 + shift,
            "misclassification": cells,
            "ood": dict.fromkeys(sets, cells),
            "fit_seconds": 3.0,
            "predict_seconds": 0.002,
        }

    def part(*sets):
        rows = {"PG": row(teacher, sets), "CA-PG": row(teacher, sets), "OPU-PG": row(student, sets)}
        trivial = {name: {"norm": 55.0, "negative_part": 99.0} for name in sets}
        mixed = {"logits": {"min_ess": 1200.0, "max_r_hat": 1.01}}
        return {"rows": rows, "trivial": trivial, "mixing": mixed, "warnings": ["the chains have mixed too little."]}

    parts = {"pima (paper)": part("gaussian"), "pima (standardised)": part("permuted", "cluster")}
    return {"table": "blr", "seed": 0, "parts": parts}


def test_ours_stand_beside_the_papers():
    header, lines = beside_the_paper([record(-1.0), record(1.0)])
    assert len(header) == len(lines[0])
    assert lines[0] == [
        "pima: PG", "75.0 ± 1.4 (64.4)", "60.0 ± 1.4 (60.0)", "50.0 ± 1.4 (24.2)", "60.0 ± 1.4 E (87.0 E)",
        "50.0 ± 1.4 E (76.7 E)", "3.0 s, 2 ms (1.01 s)",
    ]  # fmt: skip
    assert lines[2][4] == "60.0 ± 1.4 E, 90.0 ± 0.0 C (100.0 C)"
    assert lines[3][:5] == ["pima: negative part", "", "", "", "99.0 ± 0.0"]


def test_scores_are_fixed_in_advance():
    header, lines = detection([record(0.0)])
    assert header == ["", "accuracy", "errors", "permuted", "cluster"]
    assert lines == [
        ["pima: PG, best of E, P, MI", "75.0", "70.0 MI", "70.0 MI", "70.0 MI"],
        ["pima: CA-PG, best of E, P, MI", "75.0", "70.0 MI", "70.0 MI", "70.0 MI"],
        ["pima: OPU-PG, N", "75.0", "80.0", "80.0", "80.0"],
        ["pima: OPU-PG, E", "75.0", "60.0", "60.0", "60.0"],
        ["pima: OPU-PG, C", "75.0", "90.0", "90.0", "90.0"],
        ["pima: best trivial detector", "", "", "99.0", "99.0"],
    ]


def test_a_student_that_diverged_is_counted_and_left_out_of_the_averages():
    lost = record(1.0)
    lost["parts"]["pima (paper)"]["rows"]["OPU-PG"] = {"diverged": "the log-precision ran away"}
    _, lines = beside_the_paper([record(-1.0), lost])
    assert lines[2][:2] == ["pima: OPU-PG (diverged on 1 of 2 seeds)", "74.0 (64.4)"]
    _, lines = beside_the_paper([lost])
    assert lines[2][:2] == ["pima: OPU-PG", "diverged on 1 of 1 seeds"]
    assert len({len(line) for line in lines}) == 1


def test_gaps_are_taken_seed_by_seed():
    header, lines = gaps([record(-1.0), record(1.0)])
    assert header == ["student less teacher", "accuracy", "errors (E)", "permuted", "cluster"]
    # The teacher's best is MI at 70 everywhere; for errors the student's E is 59 and then 61, for OOD sets N is 80.
    assert lines == [
        ["pima: OPU-PG", "+0.0 ± 0.0 (2 of 2)", "-10.0 ± 1.4 (0 of 2)", "+10.0 ± 0.0 (2 of 2)", "+10.0 ± 0.0 (2 of 2)"]
    ]


def test_mixing_is_told_at_its_worst():
    other = record(0.0)
    other["parts"]["pima (standardised)"]["mixing"] = {"logits": {"min_ess": 7.0, "max_r_hat": 1.5}}
    assert mixing([record(0.0), other]) == (
        "Least effective sample size and largest R-hat, over seeds: pima (paper) 1,200 and 1.01; "
        "pima (standardised) 7 and 1.50."
    )


def test_the_bound_is_kept_by_windows_of_steps_and_told_over_seeds():
    elbo = torch.cat([torch.linspace(-1.0, -0.8, 100), torch.full((100,), -0.5), torch.full((100,), -0.4)])
    kept = training(elbo, True)
    assert kept == {"elbo": [-0.9, -0.5, -0.4], "steps": 300, "converged": True}

    def of(training):
        part = {"rows": {"SVGP": {"training": training}}}
        return {"table": "gp", "seed": 0, "parts": {"pima (standardised)": part}}

    longer = {"elbo": [-0.7, -0.5, -0.4, -0.2], "steps": 400, "converged": False}
    _, (line,) = bound([of(kept | {"elbo": [-0.9, -0.5, -0.4, -0.4]}), of(longer)])
    assert line == [
        "pima (standardised)", "-0.8000", "-0.5000", "-0.3000", "-0.4000", "-0.3000", "300 to 400", "1 of 2",
    ]  # fmt: skip


def test_speed_is_told_with_and_without_the_sampling():
    header, lines = speed([record(0.0)])
    assert len(header) == len(lines[0])
    assert lines == [["pima: PG", "3.0 s", "2 ms", "2 ms", "1.0x", "1,501x"]]


def test_the_terminal_shows_both_and_what_was_noticed():
    text = io.StringIO()
    show([record(0.0)], Console(file=text, width=40))
    assert "best trivial detector" in text.getvalue()
    said = " ".join(text.getvalue().split())
    assert "Noticed in pima (standardised), 1 of 1 seeds, such as: the chains have mixed too little." in said
