"""Small files that ask for much: refused before they take memory or time, which is measured in processes of their own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import opu
from opu.students import budget, from_teacher, lenet, mlp
from tests.student_files import as_before, edit, edit_description

MOST_MEGABYTES = 300
MOST_SECONDS = 5  # of the processor; the largest of these files is 8 MB, and takes one


def deep(levels):
    return {"dict": {"a": deep(levels - 1)}} if levels else {"shape": [4], "type": "float32"}


DESCRIPTIONS = {
    "one wide layer": ("mlp", {"hidden": [10**8]}),
    "a layer wider than memory": ("mlp", {"hidden": [10**17]}),
    "a million layers": ("mlp", {"hidden": [1] * 10**6}),
    "many layers of a known size": ("mlp", {"hidden": [6] * 10**5}),
    "binary layers": ("mlp", {"architecture": "binary_mlp", "hidden": [10**8]}),
    "many features": ("mlp", {"num_features": 10**9}),
    "many classes": ("mlp", {"num_classes": 10**9}),
    "a long link": ("mlp", {"link": "sigmoid(" + "1" * 10**6}),
    "a long architecture": ("mlp", {"architecture": "m" * 10**6}),
    "large inputs": ("mlp", {"inputs": {"shape": [10**12], "type": "float32"}}),
    "larger inputs": ("mlp", {"inputs": {"shape": [10**9] * 9, "type": "float32"}}),
    "inputs of many axes": ("mlp", {"inputs": {"shape": [1] * 10**6, "type": "float32"}}),
    "inputs of many parts": (
        "mlp",
        {"inputs": {"dict": {str(n): {"shape": [4], "type": "float32"} for n in range(10**5)}}},
    ),
    "deep inputs": ("mlp", {"inputs": deep(300)}),
    "many columns": ("mlp", {"inputs": {"shape": [4], "type": "float32", "columns": ["a"] * 10**6}}),
    "large images": ("lenet", {"image_shape": [1, 10**9, 10**9]}),
    "many channels": ("lenet", {"channels": [10**9, 3]}),
    "a wide layer": ("lenet", {"hidden": 10**10}),
}


def step(name, call, *args, **kwargs):
    return {"name": name, "call": call, "args": list(args), "kwargs": kwargs}


def value(name):
    return {"value": name}


# Each makes a value x1, whose sum is added to what the network returns.
PROGRAMS = {
    "zeros": [step("x1", "aten.zeros.default", [10**12])],
    "zeros of many axes": [step("x1", "aten.zeros.default", [2] * 40)],
    "full": [step("x1", "aten.full.default", [10**6, 10**6], 1.0)],
    "arange": [step("x1", "aten.arange.default", 10**12)],
    "linspace": [step("x1", "aten.linspace.default", 0, 1, 10**12)],
    "eye": [step("x1", "aten.eye.default", 10**7)],
    "repeat": [step("x1", "aten.repeat.default", value("input"), [10**6, 10**6])],
    "expand and copy": [
        step("x0", "aten.expand.default", value("weight:1.bias"), [10**10, 4]),
        step("x1", "aten.clone.default", value("x0")),
    ],
    "pad": [step("x1", "aten.constant_pad_nd.default", value("input"), [10**11, 0])],
    "pad and cut": [
        step("x0", "aten.pad.default", value("input"), [10**11, 0]),
        step("x1", "aten.slice.Tensor", value("x0"), 1, 0, 3),
    ],
    "outer": [
        step("x0", "aten.arange.default", 10**6),
        step("x1", "aten.outer.default", value("x0"), value("x0")),
    ],
    "doubling": [
        step("d0", "aten.flatten.using_ints", value("input")),
        *(step(f"d{n + 1}", "aten.cat.default", [value(f"d{n}"), value(f"d{n}")]) for n in range(45)),
        step("x1", "aten.relu.default", value("d45")),
    ],
    "many at once": [
        *(step(f"m{n}", "aten.zeros.default", [10**7]) for n in range(100)),
        step("x1", "aten.stack.default", [value(f"m{n}") for n in range(100)]),
    ],
    "integers without end": [
        step("d0", "operator.mul", 10**18, 10**18),
        *(step(f"d{n + 1}", "operator.mul", value(f"d{n}"), value(f"d{n}")) for n in range(60)),
        step("x1", "aten.add.Scalar", value("input"), value("d60")),
    ],
    "lists without end": [
        step("d0", "aten.unbind.int", value("input")),
        step("d1", "operator.mul", value("d0"), 10**10),
        step("x1", "aten.stack.default", value("d1")),
    ],
    "pieces": [
        step("d0", "aten.zeros.default", [5 * 10**7]),
        step("d1", "aten.split.Tensor", value("d0"), 1),
        step("x1", "aten.stack.default", value("d1")),
    ],
    "a long sequence": [
        step("d0", "aten.zeros.default", [10**6, 1, 1]),
        step("w", "aten.zeros.default", [1, 1]),
        step("h", "aten.zeros.default", [1, 1, 1]),
        step(
            "d1", "aten.rnn_tanh.input", *map(value, ("d0", "h")), [value("w")] * 2, False, 1, 0.0, False, False, False
        ),
        step("x1", "operator.getitem", value("d1"), 0),
    ],
    "many steps": [step("x1", "aten.relu.default", value("input"))] * 10**5,
    "nested": [{"name": "x1", "call": "aten.relu.default", "args": json.loads("[" * 58 + "]" * 58), "kwargs": {}}],
    "made on the processor": [step("x1", "aten.zeros.default", [10**12], device="cpu")],
    "pictures": [
        step("d0", "aten.reshape.default", value("input"), [1, 1, 1, -1]),
        step("x1", "aten.upsample_nearest2d.vec", value("d0"), [10**6, 10**6], None),
    ],
    "one hot": [
        step("d0", "aten.to.dtype", value("input"), {"dtype": "int64"}),
        step("x1", "aten.one_hot.default", value("d0"), 10**12),
    ],
}

LOADING = """if True:
    import json, os, pathlib, resource, sys
    import opu
    def peak():
        lines = pathlib.Path("/proc/self/status").read_text().splitlines()
        return {line.split(":")[0]: int(line.split()[1]) // 1024 for line in lines if line.startswith(("VmPeak", "VmHWM"))}
    found, root = {}, pathlib.Path(sys.argv[1])
    opu.load(root / "unchanged")  # which imports what loading needs
    for folder in sorted(root.iterdir()):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[2]), int(sys.argv[2])))
            before = peak()
            try:
                said = "loaded with " + str(opu.load(folder).link)
            except ValueError as error:
                said = f"ValueError: {error}"
            except BaseException as error:
                said = f"{type(error).__name__}: {error}"
            grown = max(now - then for now, then in zip(peak().values(), before.values()))
            os.write(write, json.dumps([said[:500], grown]).encode())
            os._exit(0)
        _, status = os.waitpid(child, 0)
        os.close(write)
        text = os.read(read, 10**5).decode()
        os.close(read)
        found[folder.name] = json.loads(text) if text else [f"killed, {status}", 0]
    print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What loading says of each, and the megabytes that it took."""
    root = tmp_path_factory.mktemp("bombs")
    students = {"mlp": mlp(4, 3, (6,)), "lenet": lenet(3, (1, 16, 16), (2, 3), 7)}
    for name, (kind, changes) in DESCRIPTIONS.items():
        for suffix in ("", ", before"):
            students[kind].save(root / f"{name}{suffix}")
            edit_description(root / f"{name}{suffix}", **changes)
        as_before(root / f"{name}, before")
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    from_teacher(net, example=torch.randn(2, 5)).save(root / "unchanged")
    for name, steps in PROGRAMS.items():
        from_teacher(net, example=torch.randn(2, 5)).save(root / name)
        edit(root / name, lambda _, texts, steps=steps: texts.update(programs=with_steps(texts["programs"], steps)))
    command = [sys.executable, "-c", LOADING, root, str(MOST_SECONDS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def with_steps(text: str, steps: list) -> str:
    programs = json.loads(text)
    program = programs["mean_net"]
    names = {name.split(":")[1] for name in json.dumps(steps).split('"') if name.startswith("weight:")}
    program["weights"] = sorted({*program["weights"], *(names & {"1.bias"})} - {"1.bias"})
    text = json.dumps(steps).replace("weight:1.bias", f"weight:{program['weights'][0]}")
    last = program["output"]
    program["steps"] += [
        *json.loads(text),
        step("total", "aten.sum.default", value("x1")),
        step("sum", "aten.add.Tensor", value(last), value("total")),
    ]
    program["output"] = "sum"
    return json.dumps(programs)


EVERY = [*DESCRIPTIONS, *(f"{name}, before" for name in DESCRIPTIONS), *PROGRAMS]


@pytest.mark.parametrize("name", EVERY)
def test_a_small_file_that_asks_for_much_is_refused_at_once(found, name):
    said, megabytes = found[name]
    assert said.startswith("ValueError"), said
    assert "\n" not in said
    assert megabytes < MOST_MEGABYTES


def test_the_same_file_without_a_bomb_is_loaded(found):
    assert found["unchanged"][0] == "loaded with softsign(-2.0, 7.0)"


def test_small_values_in_the_same_places_are_loaded(tmp_path):
    """The refusals above are for sizes, and not for the operators."""
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    small = {
        name: json.loads(json.dumps(PROGRAMS[name]).replace(str(10**12), "10").replace(str(10**11), "3"))
        for name in ("zeros", "arange", "linspace", "pad", "pad and cut", "one hot")
    }
    for name, steps in small.items():
        from_teacher(net, example=torch.randn(2, 5)).save(tmp_path / name)
        edit(tmp_path / name, lambda _, texts, steps=steps: texts.update(programs=with_steps(texts["programs"], steps)))
        assert opu.load(tmp_path / name)(torch.rand(7, 5)).mean.shape == (7, 3)


def test_what_could_not_be_loaded_is_not_saved(tmp_path):
    student = mlp(4, 3, (2,) * 1001)
    with pytest.raises(ValueError, match=r"cannot be saved, since it could not be loaded: .* 1,001 hidden layers"):
        student.save(tmp_path / "student")
    assert not (tmp_path / "student").exists()
    mlp(4, 3, (2,) * 100).save(tmp_path / "student")
    assert len(opu.load(tmp_path / "student").architecture["hidden"]) == 100


def test_a_graph_above_the_budget_is_saved_for_its_class(tmp_path, monkeypatch):
    class Wasteful(nn.Linear):
        def forward(self, x):
            return super().forward(x) + x.new_zeros(x.shape[0], 10**5).sum(-1, keepdim=True)

    student = from_teacher(Wasteful(5, 3), example=torch.randn(2, 5))
    student.save(tmp_path)
    assert opu.load(tmp_path)(torch.randn(4, 5)).mean.shape == (4, 3)
    monkeypatch.setattr(budget, "_LEAST_BYTES", 1000)
    with pytest.raises(ValueError, match=r"it would take 800,0.. bytes for two inputs, and at most .* are granted"):
        opu.load(tmp_path)
    with pytest.warns(UserWarning, match=r"cannot be run \(it would take 800,0.. bytes .*; to load this student, give"):
        student.save(tmp_path)
    assert opu.load(tmp_path, backbone=Wasteful(5, 3)).architecture["num_classes"] == 3


def test_files_of_this_suite_are_small(found, tmp_path_factory):
    sizes = [path.stat().st_size for path in Path(tmp_path_factory.getbasetemp()).rglob("bombs*/*/model.safetensors")]
    assert len(sizes) >= len(EVERY)
    assert max(sizes) < 2**24
