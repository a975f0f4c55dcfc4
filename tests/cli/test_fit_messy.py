"""``opu fit`` and ``opu predict`` on tables as users have them: gaps, ids, semicolons, unseen texts, a rare class."""

import json

import numpy as np
import onnxruntime
import pandas as pd
import pytest

from opu.cli import main

FIT = ("--target", "sick", "--teacher", "ensemble", "--folds", 2)


def opu(monkeypatch, *words):
    monkeypatch.setattr("sys.argv", ["opu", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr("opu.distillation.recipe.FEWEST_STEPS", 200)


@pytest.fixture
def said(capsys):
    def read():
        captured = capsys.readouterr()
        return " ".join((captured.out + captured.err).split())

    return read


@pytest.fixture(scope="module")
def people():
    random = np.random.default_rng(0)
    x = random.normal(size=(200, 2))
    kind = random.choice(["old", "new", "[bold]"], 200)
    sick = x[:, 0] + (kind == "old") + 0.5 * random.normal(size=200) > 0.5
    frame = pd.DataFrame(
        {"case": [f"{i:04d}" for i in range(200)], "height": x[:, 0], "weight": x[:, 1], "kind": kind, "sick": sick}
    )
    frame.loc[random.random(200) < 0.2, "weight"] = np.nan
    frame.loc[random.random(200) < 0.2, "kind"] = None
    return frame.assign(sick=np.where(sick, "yes", "no"), day=pd.date_range("2020", periods=200).astype(str))


@pytest.mark.slow
def test_a_table_with_gaps_ids_and_semicolons_is_fitted_predicted_and_exported(people, tmp_path, monkeypatch, said):
    people.to_csv(tmp_path / "people.csv", index=False, sep=";")
    run, out = tmp_path / "run", tmp_path / "predictions.csv"
    fit = ("fit", tmp_path / "people.csv", *FIT, "--sep", ";", "--drop", "day", "--id", "case", "--out", run)
    assert opu(monkeypatch, *fit) == 0
    assert f"values are missing in columns weight ({people['weight'].isna().sum()}), kind (" in said()
    assert opu(monkeypatch, *fit) == 2
    assert "holds a run; choose another folder, or replace it with --overwrite" in said()

    new = people.drop(columns="sick").head(20).assign(more="[red]x")
    new.loc[1, "kind"], new.loc[2, "height"] = "pink[/bold]", np.nan
    new.to_csv(tmp_path / "new.csv", index=False, sep=";")
    predict = ("predict", run, tmp_path / "new.csv", "--sep", ";", "--keep", "more")
    assert opu(monkeypatch, *predict, "--out", out) == 0
    assert "2 rows hold values unlike any in training (such as: kind is 'pink[/bold]', unseen)" in said()
    found = pd.read_csv(out, sep=";", dtype={"case": str})
    assert found["case"].tolist() == new["case"].tolist()
    assert list(found.columns[:3]) == ["case", "more", "prediction"]
    assert found["note"].fillna("").tolist()[:4] == ["", "kind is 'pink[/bold]', unseen", "height is missing", ""]
    least = found["novelty_p_value"].min()
    assert found["novelty_p_value"][1] == found["novelty_p_value"][2] == least == pytest.approx(1 / 21, abs=1e-4)
    assert (
        found["novelty"][1] > found["novelty"].drop([1, 2]).max()
        or found["novelty_p_value"].drop([1, 2]).min() == least
    )
    assert opu(monkeypatch, *predict, "--out", out) == 2
    assert "add --overwrite" in said()
    assert opu(monkeypatch, *predict, "--out", tmp_path / "p.parquet") == 0
    np.testing.assert_allclose(pd.read_parquet(tmp_path / "p.parquet")["novelty"], found["novelty"], rtol=1e-5)

    assert opu(monkeypatch, "export", run) == 0
    session = onnxruntime.InferenceSession(run / "student.onnx")
    columns = json.loads(session.get_modelmeta().custom_metadata_map["columns"])
    assert columns == [
        {"name": "height"},
        {"name": "weight"},
        {"name": "kind", "categories": ["[bold]", "new", "old", None]},
    ]
    monkeypatch.setattr("opu.sklearn.run.ROWS_AT_ONCE", 7)
    before = out.read_text()
    assert opu(monkeypatch, *predict, "--out", out, "--overwrite") == 0
    assert out.read_text() == before  # in parts, the predictions are the same


@pytest.mark.slow
def test_a_run_is_replaced_whole_or_not_at_all(people, tmp_path, monkeypatch, said):
    people.drop(columns=["case", "day"]).to_csv(tmp_path / "people.csv", index=False)
    run = tmp_path / "run"
    fit = ("fit", tmp_path / "people.csv", *FIT, "--out", run, "--overwrite")
    assert opu(monkeypatch, *fit) == 0
    first = (run / "metrics.json").read_text()
    with monkeypatch.context() as broken:
        broken.setattr("opu.sklearn.run.plotting.draw_calibration", _fail)
        assert opu(broken, *fit, "--seed", 1) == 2
    assert "no space" in said()
    assert (run / "metrics.json").read_text() == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["people.csv", "run"]
    assert opu(monkeypatch, *fit, "--seed", 1) == 0
    assert json.loads((run / "metrics.json").read_text())["seed"] == 1
    (run / "mine.txt").write_text("x")
    assert opu(monkeypatch, *fit) == 2
    assert "also holds mine.txt, which `opu fit` did not write" in said()
    assert opu(monkeypatch, *fit[:-3], "--out", tmp_path, "--overwrite") == 2
    assert "lies in the output folder" in said()
    assert (tmp_path / "people.csv").exists()


def _fail(*_):
    raise OSError(28, "no space")


@pytest.mark.slow
def test_a_rare_class_is_said_and_can_count_as_much(tmp_path, monkeypatch, said):
    random = np.random.default_rng(1)
    x = random.normal(size=(600, 2))
    sick = x[:, 0] + 0.8 * random.normal(size=600) > 2.4
    pd.DataFrame(x, columns=["a", "b"]).assign(sick=sick).to_csv(tmp_path / "rare.csv", index=False)
    found = {}
    for weight in ("none", "balanced"):
        run = tmp_path / weight
        assert opu(monkeypatch, "fit", tmp_path / "rare.csv", *FIT, "--class-weight", weight, "--out", run) == 0
        found[weight] = json.loads((run / "metrics.json").read_text())["cross_validation"]
        words = said()
        assert "of the rows are of one class, so accuracy says little" in words
        assert ("--class-weight balanced" in words) == (weight == "none")
    assert found["none"]["base_rate"] == pytest.approx(100 * (1 - sick.mean()))
    assert found["balanced"]["balanced_accuracy"] > found["none"]["balanced_accuracy"] + 10
    assert found["none"]["auroc"] > 80


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--drop", "hight"), "--drop: column hight is not in the table"),
        (("--class-weight", "even"), "--class-weight must be balanced or none; got 'even'"),
        ((), "column case holds 200 different texts, such as '0000'"),
        (("--sep", ";;"), "--sep must be one character"),
        (("--drop", "case,day", "--teacher", "gp"), "the teacher gp needs about"),
        (("--drop", "day", "--id", "note"), "--id note has the name of a column of the predictions; rename it."),
    ],
)
def test_a_mistake_costs_one_line_and_leaves_nothing(options, message, people, tmp_path, monkeypatch, said):
    monkeypatch.setattr("opu.sklearn.cost._memory", lambda: 1e5)
    people.assign(case="c" + people["case"]).rename(columns={"case": "note"} if "note" in options else {}).to_csv(
        tmp_path / "bad.csv", index=False
    )
    assert opu(monkeypatch, "fit", tmp_path / "bad.csv", *FIT, *options, "--out", tmp_path / "run") == 2
    words = said()
    assert message.replace("'0000'", "'c0000'") in words
    assert "Traceback" not in words
    assert [path.name for path in tmp_path.iterdir()] == ["bad.csv"]
