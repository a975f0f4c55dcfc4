"""``opu predict`` for students, as someone who writes no Python would use it; tables are in ``test_fit.py``."""

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import opu
from opu.cli import main


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    """The command line in a folder of its own: exit code, and what it printed, as one line."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        monkeypatch.setattr("sys.argv", ["opu", "predict", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            main()
        said = capsys.readouterr()
        return stopped.value.code, " ".join(said.out.split()), " ".join(said.err.split())

    return call


@pytest.fixture
def student(tmp_path):
    """Saved in ``student``; takes grey images of 8 x 8 pixels, four of which are in ``photos`` beside a broken one."""
    student = opu.students.mlp(64, 3, (8,))
    opu.calibrate(student, torch.rand(150, 1, 8, 8) * 2 - 1)
    student.save(tmp_path / "student")
    (tmp_path / "photos").mkdir()
    for number, pixels in enumerate(photographs()):
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{number}.png")
    (tmp_path / "photos" / "broken.jpg").write_bytes(b"no image")
    return student


def photographs():
    return np.random.default_rng(0).integers(0, 256, (4, 8, 8)).astype(np.uint8)


def test_a_folder_of_images_is_predicted(call, student, tmp_path):
    code, said, _ = call("student", "photos", "--scale=-1,1", "--classes", "cat,dog,horse", "--level", 0.5)
    assert code == 0
    assert said.endswith("5 rows predicted in predictions.csv.")
    assert "Inputs with a note in place of a prediction: 1 of 5, broken.jpg (cannot be read" in said
    frame = pd.read_csv("predictions.csv")
    assert frame["input"].tolist() == ["0.png", "1.png", "2.png", "3.png", "broken.jpg"]
    expected = student.predict((photographs()[:, None] / 127.5 - 1).astype(np.float32)).to_frame(
        ["cat", "dog", "horse"], 0.5
    )
    pd.testing.assert_frame_equal(
        frame[expected.columns][:4], expected, rtol=1e-4, check_dtype=False, check_index_type=False
    )
    assert call("student", "photos")[0] == 2
    code, _, _ = call("student", "photos", "--scale", "-1,1", "--overwrite", "--batch-size", 1)
    assert code == 0
    assert [name for name in pd.read_csv("predictions.csv") if name.startswith("probability")] == [
        "probability_0",
        "probability_1",
        "probability_2",
    ]


def test_standardised_images_and_arrays_are_predicted_alike(call, student, tmp_path):
    np.save("x.npy", (photographs() / 255 - 0.5) / 0.25)
    (tmp_path / "photos" / "broken.jpg").unlink()
    assert call("student", "x.npy", "--out", "a.parquet")[0] == 0
    assert call("student", "photos", "--mean", "0.5", "--std", "0.25", "--out", "b.parquet")[0] == 0
    first, second = (pd.read_parquet(name).drop(columns="input") for name in ("a.parquet", "b.parquet"))
    pd.testing.assert_frame_equal(first, second, rtol=1e-4)


def test_mistakes_cost_one_line(call, student, tmp_path):
    np.save("x.npy", np.zeros((3, 5)))
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.png").write_bytes(b"no image")
    (tmp_path / "fitted").mkdir()
    (tmp_path / "fitted" / "classifier.json").write_text("{}")
    before = sorted(tmp_path.rglob("*"))
    for words, message in (
        (("student", "bad"), "no input in bad can be predicted, of 1: a.png"),
        (("student", "x.npy"), "takes inputs of shape (1, 8, 8); each row of x.npy has shape (5,)"),
        (
            ("student", "photos", "--scale", "1"),
            "--scale takes 2 numbers with commas between them, such as 0,1; got '1'.",
        ),
        (("student", "photos", "--mean", "a"), "--mean takes numbers with commas between them"),
        (("student", "photos", "--out", "x.txt"), "--out must end in .csv or .parquet"),
        (("student", "photos", "--classes", "a,b"), "--classes must name all 3 classes; got 2: a, b."),
        (("nothing", "photos"), "there is no saved classifier or student in nothing"),
        (("fitted", "x.csv", "--scale", "0,1"), "--classes, --scale, --mean and --std are for students"),
    ):
        code, _, said = call(*words)
        assert code == 2, words
        assert message in said
        assert "Traceback" not in said
    assert sorted(tmp_path.rglob("*")) == before
