"""A classifier in files: the old one or the new one after a kill, and refused in one sentence if it was edited."""

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import opu
from opu.cli import main
from opu.distillation.kinds import FIT, MARKS
from opu.distillation.replacing import fresh_folder, put_back
from opu.sklearn import OnePassClassifier
from tests.fuzzing import changed_json
from tests.student_files import as_before, edit

TESTS = Path(__file__).parents[1]
SAVED = TESTS / "saved" / "classifier"
KNOWN = json.loads((TESTS / "saved" / "expected.json").read_text())["classifier"]


def rows() -> np.ndarray:
    return np.array(KNOWN["rows"], dtype=float)


@pytest.fixture
def folder(tmp_path):
    OnePassClassifier.load(SAVED).save(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("again", [False, True])
def test_what_the_release_before_wrote_is_read_and_saved_anew(again, folder):
    model = OnePassClassifier.load(folder if again else SAVED)
    np.testing.assert_allclose(model.predict_proba(rows()), KNOWN["probabilities"], rtol=1e-6)
    np.testing.assert_allclose(model.uncertainty(rows())["novelty"], KNOWN["novelty"], atol=0.05)  # ties have slack now
    assert model.classes_.tolist() == ["no", "yes"]


# --- kills -----------------------------------------------------------------------------------------------------------

KILLS = """if True:
    import copy, json, pathlib, shutil, sys
    sys.path.insert(0, sys.argv[1])
    import numpy as np, torch
    from killing import every_line, random_moments
    from opu.sklearn import OnePassClassifier
    from opu.distillation.kinds import FIT, MARKS
    from opu.distillation.replacing import fresh_folder, put_back

    torch.set_num_threads(1)
    saved, folder = pathlib.Path(sys.argv[1]) / "saved" / "classifier", pathlib.Path(sys.argv[2])
    old = OnePassClassifier.load(saved)
    new = copy.deepcopy(old)
    new.classes_ = np.array([3, 8])
    new.standardise_.standardise.mean += 1
    with torch.no_grad():
        new.student_.mean_net[1].bias += 1
    models = {"old": old, "new": new}

    def parts(model):
        return model.classes_.tolist(), model.standardise_.description(), model.student_.mean_net[1].bias.tolist()

    def found():
        again = parts(OnePassClassifier.load(folder))
        return next((name for name, model in models.items() if parts(model) == again), "a mixture")

    def prepare(of_before):
        shutil.rmtree(folder, ignore_errors=True)
        if of_before:
            shutil.copytree(saved, folder)
        else:
            old.save(folder)

    def prepare_run():
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "run").mkdir(parents=True)
        for mark in MARKS:
            (folder / "run" / mark).write_text("old")

    def fit():
        with fresh_folder(folder / "run", FIT, overwrite=True) as work:
            for mark in MARKS:
                (work / mark).write_text("new")

    def found_run():
        note = put_back(folder / "run")
        whats = {(folder / "run" / mark).read_text() for mark in MARKS}
        return " and ".join(sorted(whats)) + (f", {note.split('; ')[1]}" if note else "")

    def back_and_forth():
        new.save(folder)
        old.save(folder)

    if sys.argv[3] == "run":
        counts = [every_line(prepare_run, fit, found_run)]
    elif sys.argv[3] == "lines":
        counts = [every_line(lambda: prepare(before), lambda: new.save(folder), found) for before in (True, False)]
    else:
        prepare(False)
        counts = [random_moments(back_and_forth, found, int(sys.argv[3]))]
    print(json.dumps(counts))
"""


def kills(tmp_path, what):
    done = subprocess.run(
        [sys.executable, "-c", KILLS, TESTS, tmp_path / "model", what], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_kill_before_any_line_leaves_the_old_classifier_or_the_new_one(tmp_path):
    for counts in kills(tmp_path, "lines"):
        assert counts.keys() == {"old", "new"}
        assert min(counts.values()) > 10


@pytest.mark.parametrize("times", ["20", pytest.param("100", marks=pytest.mark.long)])
def test_a_kill_at_a_random_moment_leaves_one_whole_classifier(tmp_path, times):
    (counts,) = kills(tmp_path, times)
    assert counts.keys() <= {"old", "new"}
    assert sum(counts.values()) == int(times)


def test_a_kill_while_a_run_is_replaced_loses_no_run(tmp_path):
    (counts,) = kills(tmp_path, "run")
    assert counts.keys() == {"old", "new", "new, the new run was whole, and is there now."}


def interrupted(folder, number, *, new: bool):
    """What a kill between the two renames leaves."""
    for name, text in [("old", "old"), *([("part", "new")] if new else [])]:
        place = folder / f".run.{number}.{name}"
        place.mkdir()
        for mark in MARKS:
            (place / mark).write_text(text)


@pytest.fixture
def ended():
    """The number of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@pytest.mark.parametrize("new", [False, True])
@pytest.mark.parametrize("empty", [False, True])
def test_a_run_is_put_back(tmp_path, ended, new, empty):
    interrupted(tmp_path, ended, new=new)
    if empty:
        (tmp_path / "run").mkdir()
    note = put_back(tmp_path / "run")
    assert ("the new run was whole, and is there now" if new else "the run before is back") in note
    assert (tmp_path / "run" / MARKS[0]).read_text() == ("new" if new else "old")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert put_back(tmp_path / "run") is None


def test_a_student_of_a_run_that_was_not_put_back_is_said_to_be_there(tmp_path, ended):
    import opu
    from opu.export.run import export_run

    interrupted(tmp_path, ended, new=True)
    with pytest.raises(ValueError, match="a command was killed while it replaced it"):
        opu.load(tmp_path / "run")
    with pytest.raises(ValueError, match="classifier"):  # the marks of this test are no run, but they are back
        export_run(tmp_path / "run")
    assert (tmp_path / "run" / MARKS[0]).read_text() == "new"


def test_what_was_put_there_since_is_left_alone(tmp_path, ended):
    interrupted(tmp_path, ended, new=True)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    assert put_back(tmp_path / "run") is None
    assert len(list(tmp_path.iterdir())) == 3


def test_a_run_that_is_being_replaced_is_left_to_its_process(tmp_path):
    with subprocess.Popen(["sleep", "60"]) as process:
        interrupted(tmp_path, process.pid, new=True)
        with pytest.raises(ValueError, match=r"is being replaced by a fit \(process .*; try again when it has ended"):
            put_back(tmp_path / "run")
        process.kill()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_run_that_was_replaced_already_is_removed_by_the_next_fit(tmp_path, ended):
    interrupted(tmp_path, ended, new=False)
    (tmp_path / "run").mkdir()
    for mark in MARKS:
        (tmp_path / "run" / mark).write_text("newest")
    with pytest.raises(ValueError, match="holds a run"):
        fresh_folder(tmp_path / "run", FIT, overwrite=False).__enter__()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("command", ["fit", "predict"])
def test_the_next_command_says_that_the_run_is_back(tmp_path, monkeypatch, capsys, ended, command):
    interrupted(tmp_path, ended, new=False)
    (tmp_path / "t.csv").write_text("a,b\n" + "".join(f"{n % 7},{n % 2}\n" for n in range(30)))
    run, table = str(tmp_path / "run"), str(tmp_path / "t.csv")
    words = ["fit", table, "--target", "b", "--out", run, "--teacher", "ensemble"]
    monkeypatch.setattr(sys, "argv", ["opu", *(words if command == "fit" else ["predict", run, table])])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2  # it holds no real run, and is not overwritten
    assert "the run before is back" in " ".join(capsys.readouterr().out.split())
    assert (tmp_path / "run" / MARKS[0]).read_text() == "old"


# --- refusals --------------------------------------------------------------------------------------------------------


def edit_classifier(folder: Path, **changes) -> None:
    """Edit both copies of the description, as an older version and today's would hold it."""
    found = json.loads((folder / "classifier.json").read_text())
    del found["student"]
    text = json.dumps(found | changes)
    (folder / "classifier.json").unlink()
    edit(folder / "student", lambda _, texts: texts.update(classifier=text))


WRONG = {
    "version": ({"format": 99}, "of version 99"),
    "version in words": ({"format": "3"}, "of version '3'"),
    "three classes": ({"classes": ["a", "b", "c"]}, "classes must be a list of 2"),
    "very many classes": ({"classes": list(range(10**6))}, "classes must be a list of 2"),
    "no classes": ({"classes": None}, "classes must be a list of 2"),
    "one class twice": ({"classes": ["a", "a"]}, "must be different"),
    "classes in lists": ({"classes": [[1], [2]]}, "must be different texts or numbers"),
    "other type": ({"dtype": "int8"}, "classes of type int8 cannot be"),
    "too large for the type": ({"dtype": "int8", "classes": [1, 1000]}, "classes of type int8 cannot be"),
    "type of much memory": ({"dtype": "U1000000000"}, "dtype must be one of"),
    "type in a list": ({"dtype": ["str"]}, "dtype must be one of"),
    "too few means": ({"mean": [0.0]}, "it has 1 means"),
    "no scale": ({"scale": []}, "it has 3 means, 0 scales"),
    "scale of zero": ({"scale": [1.0, 0.0, 1.0]}, "scales must be positive"),
    "negative scale": ({"scale": [1.0, -2.0, 1.0]}, "scales must be positive"),
    "scale without end": ({"scale": [1.0, 1e999, 1.0]}, "it holds Infinity, which is no number"),
    "scale in words": ({"scale": ["1", "1", "1"]}, "scale must be a list of finite numbers"),
    "scale of truth": ({"scale": [True, True, True]}, "scale must be a list of finite numbers"),
    "NaN filled in": ({"fill": [0.0, float("nan")]}, "it holds NaN, which is no number"),
    "another column": ({"indicated": [2]}, "indicated must be different numbers of its 2 columns"),
    "negative column": ({"indicated": [-1]}, "indicated must be different numbers of its 2 columns"),
    "half a column": ({"indicated": [0.5]}, "indicated must be a list of integers"),
    "one name": ({"feature_names": ["a"]}, "feature_names must be 2 texts"),
    "names in numbers": ({"feature_names": [1, 2]}, "feature_names must be 2 texts"),
    "nothing missing": ({"missing": None}, "missing must be a text"),
    "other kind": ({"kind": "opu student"}, "it is not of kind 'opu classifier'"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("of_before", [False, True])
def test_an_edited_description_is_refused(name, of_before, folder):
    changes, message = WRONG[name]
    if of_before:  # which have no checksum at all
        found = json.loads((folder / "classifier.json").read_text()) | {"format": 2} | changes
        if "version" in name:
            message = r"of version .*, and its student was saved apart from it|of version 99"
        as_before(folder / "student")
        (folder / "classifier.json").write_text(json.dumps(found))
    else:
        edit_classifier(folder, **changes)
    with pytest.raises(ValueError, match=message) as refusal:
        OnePassClassifier.load(folder)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 500


@pytest.mark.parametrize(
    "text", ["[1]", "{", "[" * 10**5, '{"kind": "opu classifier", "kind": 1}', "\ud800"], ids=range(5)
)
def test_a_garbled_description_is_refused(text, folder):
    (folder / "classifier.json").write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(ValueError, match="is not the description of a classifier") as refusal:
        OnePassClassifier.load(folder)
    assert "\n" not in str(refusal.value)


def test_an_edit_of_the_copy_is_not_passed_over(folder):
    path = folder / "classifier.json"
    path.write_text(path.read_text().replace('"yes"', '"perhaps"'))
    with pytest.raises(ValueError, match="it was edited, but the classifier is in student/"):
        OnePassClassifier.load(folder)


def test_a_student_that_was_saved_over_the_classifiers_own_is_refused(folder):
    opu.load(folder).save(folder / "student")
    with pytest.raises(ValueError, match="its student was saved apart from it; save both again"):
        OnePassClassifier.load(folder)


def test_a_copy_that_is_missing_does_no_harm(folder):
    """A kill before it was written for the first time."""
    (folder / "classifier.json").unlink()
    np.testing.assert_allclose(OnePassClassifier.load(folder).predict_proba(rows()), KNOWN["probabilities"], rtol=1e-6)


def test_a_student_alone_is_no_classifier(tmp_path):
    opu.students.mlp(2, 2, (3,)).save(tmp_path / "student")
    with pytest.raises(ValueError, match=r"there is no saved classifier in .*: classifier\.json is missing"):
        OnePassClassifier.load(tmp_path)


def test_a_classifier_that_could_not_be_read_is_not_written(folder):
    model = OnePassClassifier.load(folder)
    before = {path: path.read_bytes() for path in folder.rglob("*.*")}
    model.standardise_.standardise.scale = torch.zeros(3, dtype=torch.float64)
    with pytest.raises(ValueError, match="scales must be positive"):
        model.save(folder)
    assert {path: path.read_bytes() for path in folder.rglob("*.*")} == before
    shutil.rmtree(folder)


# --- anything else ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [150, pytest.param(800, marks=pytest.mark.long)])
@pytest.mark.parametrize("of_before", [False, True])
def test_a_description_with_other_values_is_refused_or_predicts(folder, of_before, times):
    """Both copies are changed: that in the student's file, and that of older versions."""
    text = json.loads((folder / "classifier.json").read_text())
    del text["student"]
    if of_before:
        as_before(folder / "student")
        text["format"] = 2
    else:
        (folder / "classifier.json").unlink()
    whole = (folder / "student" / "model.safetensors").read_bytes()
    draw, refusals = random.Random(0), []
    for number in range(times):
        draw.seed(number)
        changed = changed_json(json.dumps(text), draw)
        if of_before:
            (folder / "classifier.json").write_text(changed)
        else:
            (folder / "student" / "model.safetensors").write_bytes(whole)
            edit(folder / "student", lambda _, texts, changed=changed: texts.update(classifier=changed))
        try:
            model = OnePassClassifier.load(folder)
        except ValueError as refusal:
            refusals.append(str(refusal))
            continue
        except Exception as error:
            raise AssertionError(f"change {number}: {changed}") from error
        x = rows()
        if hasattr(model, "feature_names_in_"):
            x = pd.DataFrame(x, columns=model.feature_names_in_)
        assert model.predict_proba(x).shape == (5, 2)
        assert set(model.predict(x)) <= set(model.classes_)
    assert not any("\n" in each or len(each) > 600 for each in refusals)
    assert 0.3 * times < len(refusals) < times
