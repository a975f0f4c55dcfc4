"""Files are whole or not there, state comes back as it was, and a file of someone else's is refused."""

import json
import math
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

from opu.files import read_state, write_atomically, write_state
from opu.locks import NoLocks
from opu.tensor_file import checksum, to_bytes

laws = settings(deadline=None, max_examples=30, derandomize=True)


# --- one file at a time ----------------------------------------------------------------------------------------------


@laws
@given(st.binary(max_size=200), st.binary(max_size=200))
def test_a_file_holds_what_was_written_last_and_nothing_else_is_left(first, second):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a" / "b" / "file.bin"
        for content in (first, second):
            write_atomically(path, content)
            assert path.read_bytes() == content
        assert list(path.parent.iterdir()) == [path]


REFUSED_BY_THE_SYSTEM = """if True:
    import pathlib, resource, signal, sys, warnings
    import numpy as np, torch, opu
    from opu.distillation import Distillation
    from opu.distillation.run_folder import RunFolder
    from opu.files import replaced, save_figure, write_atomically, write_json, write_state
    from opu.plotting import canvas
    from opu.predict_files.sheet import SHEETS
    from opu.sklearn.frames import write_frame
    from opu.students import mlp
    import matplotlib, pandas
    folder = pathlib.Path(sys.argv[1])
    small, large = mlp(2, 2, (3,)), mlp(200, 2, (300,))

    def sheet(name, size):
        with replaced(folder / name) as temporary, SHEETS[pathlib.Path(name).suffix](temporary) as rows:
            values = {"p": np.random.default_rng(0).random(size)}
            rows.write([f"{i} of {size}" for i in range(size)], [""] * size, [True] * size, values)

    def picture(size):
        figure = canvas.figure(3, 3)
        figure.subplots().imshow(np.random.default_rng(0).random((min(size, 300), 300)))
        canvas.finish(figure, folder / "picture.png")

    def plot(size):
        values = np.random.default_rng(0).random(size).tolist()
        Distillation(values, values, 1, steps_per_epoch=1).plot(folder / "plot.svg")

    def log(size):
        run = RunFolder(folder / "run", {"a": 1}, resume=True)
        run.rewind_log(10)
        for step in range(size // 10):
            run.log(step=step, loss=0.5)

    writers = {
        "file": lambda size: write_atomically(folder / "file.bin", b"x" * size),
        "json": lambda size: write_json(folder / "value.json", ["x" * size]),
        "state": lambda size: write_state(folder / "state.safetensors", {"w": torch.zeros(size)}),
        "student": lambda size: (small if size < 1000 else large).save(folder / "student"),
        "csv": lambda size: sheet("rows.csv", size),
        "parquet": lambda size: sheet("rows.parquet", size),
        "frame": lambda size: write_frame(folder / "frame.csv", pandas.DataFrame({"a": range(size)})),
        "frame of parquet": lambda size: write_frame(folder / "frame.parquet", pandas.DataFrame({"a": range(size)})),
        "picture": picture,
        "plot": plot,
        "log": log,
    }
    for write in writers.values():
        write(10)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (70_000, 70_000))
    for name, write in writers.items():
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        try:
            write(100_000)
            print(name, "written")
        except OSError as error:
            same = name == "log" or {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
            print(name, "refused,", "all as before:" if same else "CHANGED:", error.strerror)
"""
WRITERS = ("file", "json", "state", "student", "csv", "parquet", "frame", "frame of parquet", "picture", "plot")


@pytest.fixture(scope="module")
def after_refusal(tmp_path_factory):
    """A folder where small files were written, and then large ones that the operating system refused."""
    folder = tmp_path_factory.mktemp("refusal")
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", REFUSED_BY_THE_SYSTEM, folder],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return folder, done.stdout


@pytest.mark.parametrize("name", WRITERS)
def test_a_refused_write_says_so(after_refusal, name):
    folder, said = after_refusal
    (line,) = [line for line in said.splitlines() if line.startswith(f"{name} refused") or line == f"{name} written"]
    assert f"{name} refused, all as before: could not write {folder}" in line
    assert "What was there before is untouched; free some space or choose another folder" in line


def test_a_refused_line_of_a_log_says_so_and_the_whole_lines_stay(after_refusal):
    folder, said = after_refusal
    assert (
        f"log refused, all as before: could not write {folder / 'run' / 'log.jsonl'}: File too large. The last" in said
    )
    lines = (folder / "run" / "log.jsonl").read_text().split("\n")
    assert [json.loads(line)["step"] for line in lines[:-1]] == [0, *range(len(lines) - 2)]


def test_a_refused_write_leaves_the_old_files_whole(after_refusal):
    from opu import load

    folder, _ = after_refusal
    assert (folder / "file.bin").read_bytes() == b"x" * 10
    assert json.loads((folder / "value.json").read_text()) == ["x" * 10]
    assert torch.equal(read_state(folder / "state.safetensors")["w"], torch.zeros(10))
    assert load(folder / "student").architecture["hidden"] == [3]


def test_a_refused_write_leaves_nothing_beside_them(after_refusal):
    folder, _ = after_refusal
    assert sorted(path.name for path in folder.iterdir()) == [
        "file.bin", "frame.csv", "frame.parquet", "picture.png", "plot.svg", "rows.csv", "rows.parquet", "run",
        "state.safetensors", "student", "value.json",
    ]  # fmt: skip
    assert sorted(path.name for path in (folder / "student").iterdir()) == ["model.safetensors"]


@pytest.mark.parametrize("name", ["curve", "curve.svg", "curve.PDF"])
def test_a_picture_is_written_below_folders_that_are_missing_in_the_format_of_its_suffix(tmp_path, name):
    from opu.distillation import Distillation

    path = tmp_path / "a" / "b" / name
    Distillation([2.0, 1.0], [2.0, 1.0], 2, steps_per_epoch=1).plot(path)
    (written,) = path.parent.iterdir()
    assert written.name == ("curve.png" if name == "curve" else name)
    start = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[written.suffix.lower()]
    assert written.read_bytes().startswith(start)


def test_writing_over_a_folder_is_refused_and_leaves_it_alone(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("mine")
    with pytest.raises(OSError, match=r"could not write .*folder"):
        write_atomically(tmp_path / "folder", b"content")
    assert (tmp_path / "folder" / "file").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_writing_below_a_file_is_refused_and_leaves_it_alone(tmp_path):
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(OSError, match=r"could not write .*notes"):
        write_atomically(tmp_path / "notes" / "below" / "file", b"content")
    assert (tmp_path / "notes").read_text() == "mine"


# --- what killed processes leave -------------------------------------------------------------------------------------

# Writes half of a file, and waits to be killed; a thread of it, or another process, writes the same path meanwhile.
HALF = """if True:
    import pathlib, sys, threading, time
    from opu.files import replaced, write_atomically
    path = pathlib.Path(sys.argv[1])
    with replaced(path) as temporary:
        temporary.write_bytes(b"half")
        other = threading.Thread(target=write_atomically, args=(path, b"of a thread"))
        other.start()
        other.join()
        (path.parent / "ready").touch()
        time.sleep(1000)
"""


def hidden(folder):
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


def test_temporary_files_go_when_their_process_is_gone_and_not_before(tmp_path):
    path = tmp_path / "file.bin"
    process = subprocess.Popen([sys.executable, "-c", HALF, path])
    while not (tmp_path / "ready").exists():
        assert process.poll() is None
        time.sleep(0.002)
    assert path.read_bytes() == b"of a thread"
    (living,) = hidden(tmp_path)
    write_atomically(path, b"of another process")
    assert path.read_bytes() == b"of another process"
    assert hidden(tmp_path) == [living]  # it is still being written
    process.kill()
    process.wait()
    assert hidden(tmp_path) == [living]
    write_atomically(tmp_path / "another.bin", b"beside it")
    assert hidden(tmp_path) == []
    assert path.read_bytes() == b"of another process"


def test_files_of_others_and_of_living_processes_of_old_versions_stay(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    mine = [
        ".notes.tmp",
        "file.bin.tmp",
        ".other.bin.1.tmp",
        f".file.bin.{os.getpid()}.tmp",
        ".file.bin.x-12345678.tmp",
    ]
    stale = [f".file.bin.{ended.pid}.tmp", f".gone.bin.{ended.pid}-0123abcd.tmp"]
    for name in mine + stale:
        (tmp_path / name).write_text("half")
    write_atomically(tmp_path / "file.bin", b"new")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*mine, "file.bin"])


def test_many_threads_write_one_path_and_each_result_is_whole(tmp_path):
    path, failed = tmp_path / "file.bin", []

    def write(number):
        try:
            for _ in range(20):
                write_atomically(path, bytes([number]) * 20_000)
                content = path.read_bytes()
                assert len(content) == 20_000
                assert len(set(content)) == 1
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert [each.name for each in tmp_path.iterdir()] == ["file.bin"]


def test_a_forked_child_leaves_the_temporary_file_of_its_parent_alone(tmp_path):
    code = """if True:
        import os, pathlib, sys
        from opu.files import replaced
        path = pathlib.Path(sys.argv[1])
        child = None
        try:
            with replaced(path) as temporary:
                temporary.write_bytes(b"whole")
                child = os.fork()
                if child == 0:
                    raise KeyError
                os.waitpid(child, 0)
        except KeyError:
            os._exit(0)
    """
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "file"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "file").read_bytes() == b"whole"
    assert hidden(tmp_path) == []


def test_where_files_cannot_be_locked_they_are_written_and_nothing_is_removed(tmp_path, monkeypatch):
    def none(_descriptor):
        raise NoLocks(37, "files cannot be locked here")

    monkeypatch.setattr("opu.files.lock", none)
    (tmp_path / ".file.bin.1-0123abcd.tmp").write_text("perhaps of a process on another machine")
    write_atomically(tmp_path / "file.bin", b"new")
    assert (tmp_path / "file.bin").read_bytes() == b"new"
    assert hidden(tmp_path) == [".file.bin.1-0123abcd.tmp"]


def test_a_name_as_long_as_the_system_allows_can_be_written(tmp_path):
    path = tmp_path / ("ä" * 127)
    write_atomically(path, b"content")
    assert path.read_bytes() == b"content"


# --- nested state ----------------------------------------------------------------------------------------------------

leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
nested = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4) | st.integers(-99, 99), inner, max_size=4)
    ),
    max_leaves=12,
)


def same(a, b) -> bool:
    """Equal in value and type, NaN and the sign of zero included."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return a.hex() == b.hex()
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return a == b


@laws
@given(st.dictionaries(st.text(max_size=4), nested, max_size=4))
def test_nested_state_comes_back_in_order_and_type(state):
    with tempfile.TemporaryDirectory() as folder:
        write_state(Path(folder) / "state", state)
        assert same(read_state(Path(folder) / "state"), state)


def test_words_that_mean_something_to_the_format_come_back(tmp_path):
    state = {
        "tensor": "0",
        "dict": [["a", 1]],
        "list": {"tensor": {"list": []}},
        "__empty__": {3: math.nan, -1: -math.inf},
    }
    write_state(tmp_path / "state", state)
    assert same(read_state(tmp_path / "state"), state)


DTYPES = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.bool,
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 3, 4)], ids=str)
def test_tensors_come_back_bit_for_bit(dtype, shape, tmp_path):
    tensor = (100 * torch.randn(shape)).to(dtype)
    write_state(tmp_path / "state", {"deep": [{"w": tensor}, None]})
    again = read_state(tmp_path / "state")["deep"][0]["w"]
    assert again.dtype == dtype
    assert again.shape == tensor.shape
    assert torch.equal(again, tensor)


def test_tensors_that_share_memory_or_are_not_contiguous_come_back_apart(tmp_path):
    w = torch.randn(3, 3)
    state = {"w": w, "again": w, "part": w[1:], "turned": w.t(), "one": w[0].expand(4, 3), "learned": nn.Parameter(w)}
    write_state(tmp_path / "state", state)
    read = read_state(tmp_path / "state")
    assert all(torch.equal(read[name], state[name]) for name in state)
    read["w"].zero_()
    assert torch.equal(read["again"], w)


def test_special_numbers_in_tensors_come_back(tmp_path):
    w = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 1e-45])
    write_state(tmp_path / "state", {"w": w})
    assert torch.equal(read_state(tmp_path / "state")["w"].view(torch.int32), w.view(torch.int32))


def test_an_optimiser_goes_on_from_its_state_bit_for_bit(tmp_path):
    def step(net, optimizer):
        optimizer.zero_grad()
        net(torch.ones(2, 3)).square().sum().backward()
        optimizer.step()

    net = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    step(net, optimizer)
    write_state(tmp_path / "state", {"net": net.state_dict(), "optimizer": optimizer.state_dict()})
    step(net, optimizer)
    other = nn.Linear(3, 2)
    other_optimizer = torch.optim.Adam(other.parameters(), lr=0.7)
    read = read_state(tmp_path / "state")
    other.load_state_dict(read["net"])
    other_optimizer.load_state_dict(read["optimizer"])
    step(other, other_optimizer)
    assert torch.equal(other.weight, net.weight)
    assert torch.equal(other.bias, net.bias)


@pytest.mark.parametrize(
    "value", [{1, 2}, np.int64(3), object(), b"bytes", np.zeros(2)], ids=lambda v: type(v).__name__
)
def test_what_a_checkpoint_cannot_keep_is_refused_before_anything_is_written(value, tmp_path):
    write_state(tmp_path / "state", {"a": 1})
    with pytest.raises(TypeError, match=f"a checkpoint can keep tensors, numbers, .*got {type(value).__name__}"):
        write_state(tmp_path / "state", {"deep": [value]})
    assert read_state(tmp_path / "state") == {"a": 1}


@pytest.mark.parametrize("part", [0.0, 0.001, 0.02, 0.1, 0.5, 0.9, 0.9999])
def test_a_state_that_was_cut_short_is_refused(part, tmp_path):
    path = tmp_path / "state"
    write_state(path, {"w": torch.randn(200), "step": 3})
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    with pytest.raises(ValueError, match=r"state is not a whole file of ours .*cut short") as refusal:
        read_state(path)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}, {"state": "{cut"}], ids=str)
def test_a_file_of_someone_elses_is_refused(metadata, tmp_path):
    save_file({"w": torch.zeros(2)}, tmp_path / "state", metadata=metadata)
    with pytest.raises(ValueError, match="is not a whole file of ours"):
        read_state(tmp_path / "state")


# --- damage ----------------------------------------------------------------------------------------------------------

SAVED = Path(__file__).parent / "saved"


def test_a_file_with_any_byte_changed_is_refused_or_holds_the_same(tmp_path):
    path, damaged = tmp_path / "state", tmp_path / "damaged"
    state = {"w": torch.tensor([1.5, math.nan]), "names": ["é", None, -0.0], "mask": torch.tensor([True, False])}
    write_state(path, state)
    content, draw = path.read_bytes(), random.Random(0)
    refusals = []
    for place in range(len(content)):
        for value in {content[place] ^ 1, content[place] ^ 32, draw.randrange(256)} - {content[place]}:
            damaged.write_bytes(content[:place] + bytes([value]) + content[place + 1 :])
            try:
                again = read_state(damaged)
            except ValueError as refusal:
                refusals.append(str(refusal))
            else:  # the padding of the header, and nothing else
                assert same(again["names"], state["names"])
                assert torch.equal(again["mask"], state["mask"])
                assert torch.equal(again["w"].view(torch.int32), state["w"].view(torch.int32))
    assert len(refusals) > 2 * len(content)
    assert all("is not a whole file of ours" in each and "\n" not in each for each in refusals)


@pytest.mark.parametrize(
    "skeleton", ["7", "null", '{"list": []}', '{"dict": [["a"]]}', '{"tensor": []}', '{"x": 1}', "[" * 100_000]
)
def test_a_state_of_another_structure_is_refused(skeleton, tmp_path):
    (tmp_path / "state").write_bytes(to_bytes({"w": torch.zeros(1)}, {"state": skeleton}))
    with pytest.raises(ValueError, match="is not a whole file of ours") as refusal:
        read_state(tmp_path / "state")
    assert "\n" not in str(refusal.value)


def test_a_state_from_before_there_were_checksums_is_read():
    state = read_state(SAVED / "state.safetensors")
    assert same(state["nested"][1], {"a": None, "b": math.nan})
    assert torch.equal(state["nested"][0], torch.arange(4.0))
    assert state["step"] == 3


def test_a_checksum_tells_types_shapes_names_and_texts_apart():
    zeros = torch.zeros(4)
    others = [({"w": zeros.view(2, 2)}, {}), ({"w": zeros.int()}, {}), ({"v": zeros}, {}), ({"w": zeros}, {"a": "b"})]
    found = {checksum(*each) for each in [({"w": zeros}, {}), ({"w": zeros}, {"a": "c"}), *others]}
    assert len(found) == 6
    assert checksum({"a": zeros, "b": zeros + 1}, {}) == checksum({"b": zeros + 1, "a": zeros}, {})


def test_the_folder_is_written_to_disk_after_the_file_has_its_name(tmp_path, monkeypatch):
    calls = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: (calls.append(os.fstat(file).st_ino), sync(file)))
    monkeypatch.setattr(os, "replace", lambda a, b: (calls.append("replace"), replace(a, b)))
    write_atomically(tmp_path / "file", b"content")
    assert calls == [(tmp_path / "file").stat().st_ino, "replace", tmp_path.stat().st_ino]
