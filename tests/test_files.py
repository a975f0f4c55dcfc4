"""Files are whole or not there, state comes back as it was, and a file of someone else's is refused."""

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

from opu.files import read_state, write_atomically, write_state

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
    import pathlib, resource, signal, sys
    import torch, opu
    from opu.files import write_atomically, write_json, write_state
    from opu.students import mlp
    folder = pathlib.Path(sys.argv[1])
    small, large = mlp(2, 2, (3,)), mlp(200, 2, (300,))
    writers = {
        "file": lambda size: write_atomically(folder / "file.bin", b"x" * size),
        "json": lambda size: write_json(folder / "value.json", ["x" * size]),
        "state": lambda size: write_state(folder / "state.safetensors", {"w": torch.zeros(size)}),
        "student": lambda size: (small if size < 1000 else large).save(folder / "student"),
    }
    for write in writers.values():
        write(10)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    for name, write in writers.items():
        try:
            write(100_000)
            print(name, "written")
        except OSError as error:
            print(name, "refused", error)
"""


@pytest.fixture(scope="module")
def after_refusal(tmp_path_factory):
    """A folder where small files were written, and then large ones that the operating system refused."""
    folder = tmp_path_factory.mktemp("refusal")
    done = subprocess.run(
        [sys.executable, "-c", REFUSED_BY_THE_SYSTEM, folder], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


@pytest.mark.parametrize("name", ["file", "json", "state", "student"])
def test_a_refused_write_says_so(after_refusal, name):
    folder, said = after_refusal
    line = next(line for line in said.splitlines() if line.startswith(name))
    assert f"{name} refused" in line
    assert f"could not write {folder}" in line
    assert "File too large. What was there before is untouched; free some space or choose another folder" in line


def test_a_refused_write_leaves_the_old_files_whole(after_refusal):
    from opu import load

    folder, _ = after_refusal
    assert (folder / "file.bin").read_bytes() == b"x" * 10
    assert json.loads((folder / "value.json").read_text()) == ["x" * 10]
    assert torch.equal(read_state(folder / "state.safetensors")["w"], torch.zeros(10))
    assert load(folder / "student").architecture["hidden"] == [3]


def test_a_refused_write_leaves_nothing_beside_them(after_refusal):
    folder, _ = after_refusal
    assert sorted(path.name for path in folder.iterdir()) == ["file.bin", "state.safetensors", "student", "value.json"]
    assert sorted(path.name for path in (folder / "student").iterdir()) == ["config.json", "model.safetensors"]


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
