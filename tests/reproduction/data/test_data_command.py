"""``opu data`` as a user meets it: exit codes, and one line for a mistake."""

import sys
from types import SimpleNamespace

import pytest

from opu.cli import main
from reproduction.data import DATASETS, dataset


@pytest.fixture
def opu(tmp_path, monkeypatch, capsys):
    """Run ``opu data`` in this process; files are looked for in ``data``, by default a temporary folder."""

    def run(*words, data=tmp_path):
        monkeypatch.setattr(sys, "argv", ["opu", "data", *words])
        monkeypatch.setenv("OPU_DATA", str(data))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as left:
            main()
        done = capsys.readouterr()
        return SimpleNamespace(code=left.value.code, out=done.out, err=done.err)

    return run


def write(folder, path, content):
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(content)
    return folder / path


def assert_one_line_and_exit_2(done, *parts):
    assert done.code == 2, done.err
    assert len(done.err.strip().splitlines()) == 1
    for part in parts:
        assert part in done.err


def test_list(opu, tmp_path):
    write(tmp_path, "mnist/t10k-labels-idx1-ubyte.gz", b"x")
    done = opu("list")
    assert done.code == 0
    for part in (*DATASETS, "1 of 4", "CC BY-SA 3.0", "0.70 MB", "not known", str(tmp_path)):
        assert part in done.out


def test_verify_without_names_reports_what_is_not_here(opu):
    done = opu("verify")
    assert done.code == 0
    files = {file for each in DATASETS.values() for file in each.files}
    assert sorted(done.out.splitlines()) == sorted(f"not here {file.path}" for file in files)


def test_verify_with_names_needs_the_files(opu, tmp_path):
    done = opu("verify", "spambase")
    places = f"{tmp_path} and {tmp_path / 'cache' / 'opu'}"
    assert_one_line_and_exit_2(done, "spambase/spambase.data is not here", places, "`opu data fetch spambase`")
    assert done.out == "not here spambase/spambase.data\n"
    done = opu("verify", "mnist")
    assert_one_line_and_exit_2(done, "The same goes for 3 more of the files above")
    assert done.err.count("opu data fetch mnist") == 1
    assert len(done.out.splitlines()) == 4


@pytest.mark.parametrize("names", [(), ("spambase",)])
def test_verify_tells_damage(opu, tmp_path, names):
    path = write(tmp_path, "spambase/spambase.data", b"spoilt")
    done = opu("verify", *names)
    assert_one_line_and_exit_2(done, f"{path} has 6 bytes, but 702,942 are right", "Delete it and fetch it again")
    assert f"damaged  {path}" in done.out


def test_unknown_names(opu):
    for command in ("verify", "fetch"):
        assert_one_line_and_exit_2(opu(command, "mnits"), "no dataset 'mnits'; those that exist are mnist,")


def test_fetch_says_what_it_cannot_do(opu, tmp_path):
    assert_one_line_and_exit_2(
        opu("fetch", "emnist-balanced-part"), "rows-103680-112799", "cannot be fetched", "copy it"
    )
    path = write(tmp_path, "pima/pima-indians-diabetes.data.csv", b"mine")
    assert_one_line_and_exit_2(opu("fetch", "pima"), "it was left as it is", "--force")
    assert path.read_bytes() == b"mine"


def test_the_real_files(opu, data_folder):
    path = data_folder / dataset("pima").files[0].path
    if not path.is_file():
        pytest.skip(f"no Pima in {data_folder}")
    done = opu("verify", data=data_folder)
    assert done.code == 0, done.err
    assert "damaged" not in done.out
    assert f"right    {path}" in done.out
    # What is here needs no network.
    done = opu("fetch", "pima", data=data_folder)
    assert (done.code, done.out) == (0, f"{path}\n")
