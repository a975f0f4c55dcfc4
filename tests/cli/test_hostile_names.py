"""Names of columns, classes and files that are markup, terminal commands or half an encoding: every command shows them."""

import json
import os

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import opu
from opu.cli import main
from opu.distillation.outcome import keep_evaluation

# What closes a tag that was never opened, what would be a link, an emoji, a colour, a window's title, a line, mathematics.
NAMES = [
    "[/red]",
    "[link=http://a]b",
    ":smile: [bold]",
    "c\x1b[31md",
    "e\x1b]0;title\x07f",
    "g\nh",
    "$\\frac{$",
    "i\u202ej",
]
CLASSES = ["[/red]\x1b[31m", "$\\frac{$[bold]\n"]


@pytest.fixture
def call(monkeypatch, capfd):
    """The command line: exit code, and what it printed, in which nothing but visible characters and line ends may be."""
    monkeypatch.setenv("COLUMNS", "10000")

    def call(*words):
        monkeypatch.setattr("sys.argv", ["opu", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = "".join(capfd.readouterr())
        assert all(sign.isprintable() or sign == "\n" for sign in said), ascii(said)
        assert "Traceback" not in said
        return ended.value.code, " ".join(said.split())

    return call


@pytest.mark.slow
def test_a_table_with_hostile_names_goes_all_the_way(call, tmp_path, monkeypatch):
    monkeypatch.setattr("opu.distillation.recipe.FEWEST_STEPS", 50)
    random = np.random.default_rng(0)
    frame = pd.DataFrame(random.normal(size=(120, len(NAMES))), columns=NAMES)
    target = "[/x]\x1b[2J"
    frame[target] = np.where(frame[NAMES[0]] + 0.3 * random.normal(size=120) > 0, *CLASSES)
    frame.loc[:3, NAMES[3]] = np.nan
    frame["[/bold]\x07"] = 1
    frame["text"] = random.choice(CLASSES, 120)
    folder = tmp_path / "[bold]\x1b[31m"
    folder.mkdir()
    frame.to_csv(folder / "[bold]red.csv", index=False)
    run = folder / "run"
    code, said = call(
        "fit", folder / "[bold]red.csv", "--target", target, "--teacher", "ensemble", "--folds", 2, "--out", run
    )
    assert code == 0
    assert r"column [/bold]\x07 is the same in every row and is left out." in said
    assert r"values are missing in column c\x1b[31md (4)" in said
    assert r"[bold]\x1b[31m/run; use it with" in said
    new = frame.drop(columns=target).assign(**{"[/more]\x9b": 1})
    new.loc[0, "text"] = "[/unseen]\x1b"
    new.to_csv(folder / "new.csv", index=False)
    code, said = call("predict", run, folder / "new.csv", "--out", folder / "[bold]out.csv", "--keep", "[/more]\x9b")
    assert code == 0
    assert "120 rows predicted" in said
    assert r"text is '[/unseen]\x1b', unseen" in said
    found = pd.read_csv(folder / "[bold]out.csv")
    assert set(found["prediction"]) <= set(CLASSES)
    assert f"probability_{CLASSES[0]}" in found
    code, said = call("predict", run, folder / "new.csv", "--out", folder / "[bold]out.csv")
    assert (code, said.count("exists already")) == (2, 1)
    code, said = call("fidelity", run)
    assert code == 0
    assert (run / "fidelity.png").exists()
    assert r"\x1b[31m/run: fidelity.json" in said
    code, said = call("export", run)
    assert code == 0, said
    assert r"[bold]\x1b[31m/run/student.onnx: " in said
    code, said = call("fit", folder / "[bold]red.csv", "--target", "[/x]\x1b[3J", "--out", folder / "other")
    assert code == 2
    assert r"the target [/x]\x1b[3J is not in the table, which has [/red], [link=http://a]b" in said


def test_images_with_hostile_names_are_predicted(call, tmp_path):
    student = opu.students.mlp(64, 2, (8,))
    x = torch.rand(150, 1, 8, 8)
    opu.calibrate(student, x)
    student.save(tmp_path / "run" / "student")
    keep_evaluation(tmp_path / "run", lambda x, s: torch.randn(s, len(x), 2).log_softmax(-1), x[:30], None, None, 4)
    (tmp_path / "run" / "metrics.json").write_text(json.dumps({"classes": CLASSES}))
    photos = tmp_path / "[/red]\x1b[31m"
    photos.mkdir(parents=True)
    names = [*(name.replace("/", "|") for name in NAMES), os.fsdecode(b"\xff\xfe")]
    for name in names:
        Image.fromarray(np.full((8, 8), 99, np.uint8)).save(photos / f"{name}.png")
        (photos / f"{name}.jpg").write_bytes(b"broken")
    code, said = call("predict", tmp_path / "run", photos, "--out", tmp_path / "[bold]out.csv")
    assert code == 0
    assert f"{2 * len(names)} rows predicted" in said
    assert f"Inputs with a note in place of a prediction: {len(names)} of {2 * len(names)}" in said
    found = pd.read_csv(tmp_path / "[bold]out.csv")
    assert found["note"].isna().sum() == len(names)
    assert f"probability_{CLASSES[1]}" in found
    assert call("fidelity", tmp_path / "run")[0] == 0
    code, said = call("predict", tmp_path / "run", photos / os.fsdecode(b"\xff\xfe.none"))
    assert (code, r"\udcff\udcfe.none" in said) == (2, True)
