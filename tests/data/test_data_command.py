"""``opu data`` as a user meets it: real processes, exit codes, one line for a mistake."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from made_up import write

from opu.data import DATASETS, dataset

OPU = Path(sys.executable).with_name("opu")


def opu(*words, data, cache):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "200"}
    environment |= {"OPU_DATA": str(data), "XDG_CACHE_HOME": str(cache)}
    return subprocess.run([OPU, "data", *words], capture_output=True, text=True, env=environment)


def assert_one_line_and_exit_2(done, *parts):
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr
    for part in parts:
        assert part in done.stderr


def test_list(tmp_path):
    write(tmp_path, "mnist/t10k-labels-idx1-ubyte.gz", b"x")
    done = opu("list", data=tmp_path, cache=tmp_path / "cache")
    assert done.returncode == 0
    for name in DATASETS:
        assert name in done.stdout
    assert "1 of 4" in done.stdout
    assert "CC BY-SA 3.0" in done.stdout
    assert str(tmp_path) in done.stdout


def test_verify_without_names_reports_what_is_not_here(tmp_path):
    done = opu("verify", data=tmp_path, cache=tmp_path / "cache")
    assert done.returncode == 0
    files = {file for each in DATASETS.values() for file in each.files}
    assert sorted(done.stdout.splitlines()) == sorted(f"not here {file.path}" for file in files)


def test_verify_with_names_needs_the_files(tmp_path):
    done = opu("verify", "spambase", data=tmp_path, cache=tmp_path / "cache")
    places = f"{tmp_path} and {tmp_path / 'cache' / 'opu'}"
    assert_one_line_and_exit_2(done, "spambase/spambase.data is not here", places, "`opu data fetch spambase`")
    assert done.stdout == "not here spambase/spambase.data\n"


def test_many_missing_files_take_one_sentence(tmp_path):
    done = opu("verify", "mnist", data=tmp_path, cache=tmp_path / "cache")
    assert_one_line_and_exit_2(done, "The same goes for 3 more of the files above")
    assert done.stderr.count("opu data fetch mnist") == 1
    assert len(done.stdout.splitlines()) == 4


@pytest.mark.parametrize("names", [(), ("spambase",)])
def test_verify_tells_damage(tmp_path, names):
    path = write(tmp_path, "spambase/spambase.data", b"spoilt")
    done = opu("verify", *names, data=tmp_path, cache=tmp_path / "cache")
    assert_one_line_and_exit_2(done, f"{path} has 6 bytes, but 702,942 are right", "Delete it and fetch it again")
    assert f"damaged  {path}" in done.stdout


def test_unknown_names(tmp_path):
    for command in ("verify", "fetch"):
        done = opu(command, "mnits", data=tmp_path, cache=tmp_path / "cache")
        assert_one_line_and_exit_2(done, "no dataset 'mnits'; those that exist are mnist,")


def test_fetch_says_what_it_cannot_do(tmp_path):
    done = opu("fetch", "emnist-balanced-part", data=tmp_path / "data", cache=tmp_path / "cache")
    assert_one_line_and_exit_2(done, "rows-103680-112799", "cannot be fetched", "copy it into")
    path = write(tmp_path, "data/pima/pima-indians-diabetes.data.csv", b"mine")
    done = opu("fetch", "pima", data=tmp_path / "data", cache=tmp_path / "cache")
    assert_one_line_and_exit_2(done, "it was left as it is", "--force")
    assert path.read_bytes() == b"mine"


def test_the_real_files(data_folder, tmp_path):
    if not (data_folder / dataset("pima").files[0].path).is_file():
        pytest.skip(f"no Pima in {data_folder}")
    done = opu("verify", data=data_folder, cache=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "damaged" not in done.stdout
    path = data_folder / dataset("pima").files[0].path
    assert f"right    {path}" in done.stdout
    # What is here needs no network.
    done = opu("fetch", "pima", data=data_folder, cache=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{path}\n")
