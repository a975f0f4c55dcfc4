"""``opu fit`` and ``opu predict``, as someone who writes no Python would use them."""

import json

import numpy as np
import pandas as pd
import pytest

from opu.cli import main


def opu(monkeypatch, *words):
    monkeypatch.setattr("sys.argv", ["opu", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    random = np.random.default_rng(0)
    x = random.normal(size=(160, 2))
    kind = np.where(random.random(160) < 0.5, "old", "new")
    sick = (x[:, 0] + (kind == "old") + 0.5 * random.normal(size=160) > 0.5).astype(int)
    path = tmp_path_factory.mktemp("table") / "people.csv"
    frame = pd.DataFrame({"height": x[:, 0], "weight": x[:, 1], "kind": kind, "sick": np.array(["no", "yes"])[sick]})
    frame.to_csv(path, index=False)
    return path


@pytest.mark.slow
def test_a_table_is_fitted_and_new_rows_are_predicted(table, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("opu.distillation.recipe.FEWEST_STEPS", 300)  # enough for so small a table
    run = tmp_path / "run"
    assert opu(monkeypatch, "fit", table, "--target", "sick", "--teacher", "ensemble", "--folds", 2, "--out", run) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "160 rows, 4 features, 2 classes. In 2-fold cross-validation: accuracy" in said
    assert "(the commonest class has" in said
    found = json.loads((run / "metrics.json").read_text())
    checked = found["cross_validation"]
    assert checked["accuracy"] > 75
    assert 0.75 < checked["coverage"]["of_teacher"] <= 1
    assert checked["errors"]["entropy"]["auroc"] > 60  # novelty on a table looks for novel rows, not for errors
    assert found["classes"] == ["no", "yes"]
    assert {"classifier.json", "config.json", "encoding.json", "metrics.json", "calibration.png"} <= {
        path.name for path in run.iterdir()
    }
    assert opu(monkeypatch, "fidelity", run) == 0
    assert "of the squared distance is due to" in " ".join(capsys.readouterr().out.split())

    rows = pd.read_csv(table).drop(columns="sick").assign(extra="a")
    rows.to_csv(tmp_path / "rows.csv", index=False)
    out = tmp_path / "predictions.csv"
    assert opu(monkeypatch, "predict", run, tmp_path / "rows.csv", "--out", out) == 0
    assert "not used, since the model was not fitted to them: extra. Pass" in capsys.readouterr().out
    predictions = pd.read_csv(out)
    assert len(predictions) == 160
    np.testing.assert_allclose(predictions["probability_no"] + predictions["probability_yes"], 1, atol=1e-5)
    assert (predictions["low_yes"] <= predictions["high_yes"]).all()
    assert predictions["novelty_p_value"].between(0, 1).all()
    assert (predictions["prediction"] == pd.read_csv(table)["sick"]).mean() > 0.75

    before = out.read_text()
    assert opu(monkeypatch, "predict", run, tmp_path / "rows.csv", "--out", out) == 2
    assert "exists already and was not changed" in capsys.readouterr().err
    assert out.read_text() == before


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, ("--target", "sik"), "Did you mean sick?"),
        ({"sick": "yes"}, (), "holds one class only, 'yes'"),
        ({"sick": range(160)}, (), "holds 160 different values"),
        (
            {"sick": ["rare"] + ["no"] * 159},
            (),
            "every class needs at least two rows to be cross-validated; 'rare' has one",
        ),
        ({}, ("--teacher", "tree"), "--teacher must be polya-gamma, gp, forest or ensemble; got 'tree'"),
    ],
)
def test_a_mistake_costs_one_line_and_leaves_nothing(change, options, message, table, tmp_path, monkeypatch, capsys):
    pd.read_csv(table).assign(**change).to_csv(tmp_path / "bad.csv", index=False)
    words = ("--target", "sick", "--teacher", "ensemble", *options)
    assert opu(monkeypatch, "fit", tmp_path / "bad.csv", *words, "--out", tmp_path / "run") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert message in said
    assert "Traceback" not in said
    assert not (tmp_path / "run").exists()


def test_a_folder_that_is_no_run_is_refused(table, tmp_path, monkeypatch, capsys):
    assert opu(monkeypatch, "predict", tmp_path, table, "--out", tmp_path / "out.csv") == 2
    assert "there is no saved classifier" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out.csv").exists()
