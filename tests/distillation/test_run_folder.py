"""A run folder is never overwritten by mistake, and a run that is resumed finds what it left."""

import json

import pytest
import torch

from opu.distillation.run_folder import NoFolder, RunFolder

SETTINGS = {"steps": 10, "objective": "kl", "rates": (1, 2)}


def test_a_new_folder_holds_its_settings(tmp_path):
    folder = RunFolder(tmp_path / "a" / "run", SETTINGS, resume=False)
    assert json.loads((tmp_path / "a" / "run" / "config.json").read_text()) == {"distill": SETTINGS | {"rates": [1, 2]}}
    assert folder.checkpoint() is None


def test_a_checkpoint_comes_back_to_a_run_that_is_resumed(tmp_path):
    folder = RunFolder(tmp_path / "run", SETTINGS, resume=True)
    for step in (1, 2):
        folder.save_checkpoint({"step": step, "w": torch.full((3,), float(step))})
    state = RunFolder(tmp_path / "run", SETTINGS, resume=True).checkpoint()
    assert state is not None
    assert state["step"] == 2
    assert state["w"].tolist() == [2.0, 2.0, 2.0]
    assert [path.name for path in (tmp_path / "run" / "checkpoint").iterdir()] == ["latest.safetensors"]


def test_a_folder_with_something_in_it_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="exists and is not empty; nothing in it was changed"):
        RunFolder(tmp_path, SETTINGS, resume=False)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_an_empty_folder_is_taken(tmp_path):
    RunFolder(tmp_path, SETTINGS, resume=False)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.parametrize("resume", [False, True])
def test_a_file_in_place_of_the_folder_is_refused(tmp_path, resume):
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(ValueError, match=r"the output folder .*notes is a file"):
        RunFolder(tmp_path / "notes", SETTINGS, resume=resume)
    with pytest.raises(ValueError, match=r"the output folder .*run cannot be made"):
        RunFolder(tmp_path / "notes" / "run", SETTINGS, resume=resume)
    assert (tmp_path / "notes").read_text() == "mine"


def test_other_settings_are_refused_and_the_old_ones_kept(tmp_path):
    RunFolder(tmp_path / "run", SETTINGS, resume=False)
    before = (tmp_path / "run" / "config.json").read_bytes()
    with pytest.raises(ValueError, match="resumed with the settings it began with; steps was 10 and is 11 now"):
        RunFolder(tmp_path / "run", SETTINGS | {"steps": 11}, resume=True)
    assert (tmp_path / "run" / "config.json").read_bytes() == before
    RunFolder(tmp_path / "run", SETTINGS, resume=True)


def test_the_log_is_rewound_to_a_step_and_a_line_that_was_cut_short_is_dropped(tmp_path):
    folder = RunFolder(tmp_path / "run", SETTINGS, resume=False)
    for step in range(1, 6):
        folder.log(step=step, loss=0.5 / step)
    log = tmp_path / "run" / "log.jsonl"
    lines = log.read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"step": step, "loss": 0.5 / step} for step in range(1, 6)]
    log.write_text(log.read_text() + '{"step": 6, "lo')
    folder.rewind_log(5)
    assert log.read_text().splitlines() == lines
    folder.rewind_log(3)
    folder.log(step=4, loss=1.0)
    assert [json.loads(line)["step"] for line in log.read_text().splitlines()] == [1, 2, 3, 4]
    folder.rewind_log(0)
    assert log.read_text() == ""


def test_a_run_without_a_folder_keeps_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = NoFolder()
    folder.save_checkpoint({"step": 1})
    folder.log(step=1)
    folder.rewind_log(0)
    assert folder.checkpoint() is None
    assert list(tmp_path.iterdir()) == []
