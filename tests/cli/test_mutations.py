"""Damaged files of every kind: a command either does its work or says one sentence with exit code 2, and never anything else.

Each mutation has a number, which is its seed: ``mutated(number, content)`` gives it again.
"""

import json
import random
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file, save_file

import opu
from opu.cli import main
from opu.distillation.outcome import EVALUATION, keep_evaluation
from opu.files import read_state, write_state
from opu.sklearn import OnePassClassifier
from opu.sklearn.encoding import Encoding

VALUES = [None, True, False, 0, -1, 2, 1e308, -1e308, 10**400, 2**63, 0.5, "", "x", "0", [], {}, [[]], [None], {"a": 1}]
VALUES += [[1, "x"], ["x", "x"], [[1.0], [2.0, 3.0]], float("nan"), float("inf"), "\x1b[31m", "a" * 10_000, [0] * 1000]


# --- mutations --------------------------------------------------------------------------------------------------------


def places(value, above=()):
    """The paths of all values in a nested structure."""
    yield above
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inside:
        yield from places(each, (*above, key))


def replaced(value, path, new):
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


def without(value, path):
    copy = dict(value) if isinstance(value, dict) else list(value)
    if len(path) > 1:
        copy[path[0]] = without(value[path[0]], path[1:])
    else:
        del copy[path[0]]
    return copy


def changed_structure(chance, value):
    """The same structure with a value replaced, removed or repeated."""
    paths = list(places(value))
    path = chance.choice([chance.choice(paths), *(p for p in paths if len(p) == 1)])  # the outermost more often
    kind = chance.choice(["replace", "replace", "remove", "repeat", "swap"])
    if kind == "remove" and path:
        return without(value, path)
    found = value
    for key in path:
        found = found[key]
    if kind == "repeat" and isinstance(found, list):
        return replaced(value, path, found + found)
    if kind == "swap":
        return replaced(value, path, _at(value, chance.choice(paths)))
    return replaced(value, path, chance.choice(VALUES))


def _at(value, path):
    for key in path:
        value = value[key]
    return value


def changed_json(chance, content):
    kind = chance.choice(["structure", "structure", "structure", "structure", "nest", "twice", "bytes"])
    if kind == "nest":
        depth = chance.choice([100, 100_000])
        key = json.dumps(chance.choice(list(json.loads(content))))
        return content.rstrip()[:-1] + f", {key}: {'[' * depth}{']' * depth}}}".encode()
    if kind == "twice":
        key = json.dumps(chance.choice(list(json.loads(content))))
        return content.rstrip()[:-1] + f", {key}: {json.dumps(chance.choice(VALUES))}}}".encode()
    if kind == "bytes":
        return changed_bytes(chance, content)
    return json.dumps(changed_structure(chance, json.loads(content))).encode()


def changed_bytes(chance, content):
    """The same bytes with some flipped, cut, repeated or added."""
    place, end = sorted(chance.choices(range(len(content) + 1), k=2))
    kind = chance.choice(["flip", "flip", "flip", "cut", "repeat", "zeros", "remove", "none", "number"])
    if kind == "flip":
        raw = bytearray(content)
        for _ in range(chance.choice([1, 1, 1, 8])):
            where = chance.randrange(min(len(raw), chance.choice([16, 300, len(raw)])))  # the beginning more often
            raw[where] = chance.choice([raw[where] ^ (1 << chance.randrange(8)), chance.randrange(256)])
        return bytes(raw)
    changes = {
        "cut": content[:place],
        "repeat": content[:end] + content[place:],
        "zeros": content[:place] + bytes(end - place) + content[end:],
        "remove": content[:place] + content[end:],
        "none": b"",
        "number": content.replace(b"1", str(chance.choice([10**18, -1, 99999])).encode(), 1),
    }
    return changes[kind]


def mutated(number, content, change):
    return change(random.Random(number), content)


# --- what is mutated --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A run of `opu fit`, small, with rows to predict beside it."""
    folder = tmp_path_factory.mktemp("fitted")
    chance = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"a": chance.normal(size=60), "b": chance.normal(size=60), "kind": chance.choice(["x", "y"], 60)}
    )
    frame["ill"] = np.where(frame["a"] > 0, "yes", "no")
    frame.loc[:5, "b"] = np.nan
    encoding, _ = Encoding.of(frame, "ill")
    x = encoding.matrix(frame)
    model = OnePassClassifier("ensemble", hidden=(8,), epochs=2, random_state=0).fit(x, frame["ill"])
    model.save(folder / "run")
    (folder / "run" / "encoding.json").write_text(json.dumps(encoding.as_dict()))
    rows = model.standardise_(torch.from_numpy(x)).float()
    keep_evaluation(folder / "run", model.teacher_, rows[:20], torch.arange(20) % 2, rows[20:30], 4)
    (folder / "run" / "metrics.json").write_text(json.dumps({"classes": ["no", "yes"], "notes": ["one"], "seed": 0}))
    frame.head(10).to_csv(folder / "rows.csv", index=False)
    frame.head(10).to_parquet(folder / "rows.parquet")
    return folder


@pytest.fixture(scope="module")
def distilled(tmp_path_factory):
    """A run folder with a student of images, and inputs of every kind beside it."""
    folder = tmp_path_factory.mktemp("distilled")
    student, x = opu.students.mlp(16, 3, (8,)), torch.rand(40, 1, 4, 4)
    opu.calibrate(student, x)
    student.save(folder / "run" / "student")

    def teacher(x, num_particles):
        return torch.randn(num_particles, len(x), 3).log_softmax(-1)

    keep_evaluation(folder / "run", teacher, x[:20], torch.arange(20) % 3, x[20:], 4)
    (folder / "run" / "metrics.json").write_text(json.dumps({"classes": ["r", "s", "t"], "seed": 0}))
    np.save(folder / "x.npy", x[:9].numpy())
    np.savez(folder / "x.npz", inputs=x[:9].numpy())
    np.savez_compressed(folder / "c.npz", inputs=x[:9].numpy())
    particles = teacher(x[:9], 5).exp().numpy()
    np.save(folder / "p.npy", particles)
    np.savez(folder / "p.npz", p=particles)
    save_file({"p": particles}, folder / "p.safetensors")
    np.save(folder / "labels.npy", np.arange(9) % 3)
    Image.fromarray((255 * x[0, 0].numpy()).astype(np.uint8)).save(folder / "photo.png")
    Image.fromarray((255 * x[0, 0].numpy()).astype(np.uint8)).resize((64, 64)).save(folder / "photo.jpg")
    return folder


TABLE = [("predict", "run", "rows.csv", "--out", "out.csv", "--overwrite"), ("fidelity", "run"), ("export", "run")]
STUDENT = [("predict", "run", "x.npy", "--out", "out.csv", "--overwrite"), ("fidelity", "run"), ("export", "run")]
PARTICLES = ("fidelity", "run", "--inputs", "x.npy", "--labels", "labels.npy", "--particles")
MUTATED = {
    "encoding": ("fitted", "run/encoding.json", changed_json, TABLE[:1]),
    "classifier": ("fitted", "run/classifier.json", changed_json, [TABLE[0], TABLE[2]]),
    "metrics": ("fitted", "run/metrics.json", changed_json, TABLE),
    "evaluation": ("fitted", f"run/{EVALUATION}", changed_bytes, TABLE[1:]),
    "csv": ("fitted", "rows.csv", changed_bytes, TABLE[:1]),
    "parquet": ("fitted", "rows.parquet", changed_bytes, [(*TABLE[0][:2], "rows.parquet", *TABLE[0][3:])]),
    "metrics of a student": ("distilled", "run/metrics.json", changed_json, STUDENT[:2]),
    "evaluation of a student": ("distilled", f"run/{EVALUATION}", changed_bytes, STUDENT),
    "npy": ("distilled", "x.npy", changed_bytes, [STUDENT[0], (*PARTICLES, "p.npy")]),
    "npz": ("distilled", "x.npz", changed_bytes, [(*STUDENT[0][:2], "x.npz", *STUDENT[0][3:])]),
    "compressed": ("distilled", "c.npz", changed_bytes, [(*STUDENT[0][:2], "c.npz", *STUDENT[0][3:])]),
    "labels": ("distilled", "labels.npy", changed_bytes, [(*PARTICLES, "p.npy")]),
    "png": ("distilled", "photo.png", changed_bytes, [(*STUDENT[0][:2], "photo.png", *STUDENT[0][3:])]),
    "jpg": ("distilled", "photo.jpg", changed_bytes, [(*STUDENT[0][:2], "photo.jpg", *STUDENT[0][3:])]),
    "particles.npy": ("distilled", "p.npy", changed_bytes, [(*PARTICLES, "p.npy")]),
    "particles.npz": ("distilled", "p.npz", changed_bytes, [(*PARTICLES, "p.npz")]),
    "particles.safetensors": ("distilled", "p.safetensors", changed_bytes, [(*PARTICLES, "p.safetensors")]),
}


# --- the law ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    """A command in a folder; how it ended, which is well, or with one sentence and exit code 2."""
    monkeypatch.setattr("opu.plotting.missing", lambda: "no pictures here")
    monkeypatch.setattr("opu.export.run.write", _no_file)
    monkeypatch.chdir(tmp_path)

    def call(what, *words):
        monkeypatch.setattr("sys.argv", ["opu", *words])
        try:
            main()
        except SystemExit as ended:
            code = ended.code
        except BaseException as error:
            raise AssertionError(f"{what}: {type(error).__name__} came out of opu {' '.join(words)}") from error
        errors = capsys.readouterr().err
        assert code in (0, 2), f"{what}: exit code {code}"
        assert code == 0 or (errors.startswith("opu: ") and errors.count("\n") == 1), f"{what}: {errors}"
        return code

    return call


class Stopped(ValueError):
    pass


def _no_file(student, path, example, **_):
    """In place of the slow part of an export: everything has been read by then."""
    student(example) if isinstance(example, torch.Tensor) else None
    raise Stopped("the export itself is not what is tried here")


def hold(call, request, tmp_path, what, numbers):
    fixture, name, change, commands = MUTATED[what]
    whole = request.getfixturevalue(fixture)
    content = (whole / name).read_bytes()
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    for command in commands:
        assert call(what, *command) == (2 if command[0] == "export" else 0)  # as long as nothing is damaged
    ended = []
    for number in numbers:
        (tmp_path / name).write_bytes(mutated(number, content, change))
        ended += [call(f"mutation {number} of {what}", *command) for command in commands]
    return ended


@pytest.mark.parametrize("what", MUTATED)
def test_a_damaged_file_costs_one_sentence(what, call, request, tmp_path):
    ended = hold(call, request, tmp_path, what, range(24))
    assert 2 in ended


@pytest.mark.long
@pytest.mark.parametrize("what", MUTATED)
def test_a_damaged_file_costs_one_sentence_whatever_the_damage(what, call, request, tmp_path):
    hold(call, request, tmp_path, what, range(1000, 1100))


# --- wrong contents of whole files ------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(30))
def test_an_evaluation_with_other_contents_costs_one_sentence(number, distilled, call, tmp_path):
    shutil.copytree(distilled, tmp_path, dirs_exist_ok=True)
    state, chance = read_state(tmp_path / "run" / EVALUATION), random.Random(number)
    name = chance.choice(list(state))
    tensors = [None, 1, "x", [], {}, torch.zeros(0), torch.zeros(3), torch.zeros(2, 20, 3), torch.zeros(20, 1, 4, 4)]
    tensors += [torch.full((20, 1, 4, 4), torch.nan), torch.arange(20), torch.zeros(4, 20, 3).int(), torch.tensor(1.0)]
    tensors += [
        torch.zeros(20, dtype=torch.complex64),
        [torch.zeros(20, 2), torch.zeros(3, 2)],
        {"a": torch.zeros(20, 2)},
    ]
    changed = {**state, name: chance.choice(tensors)}
    if chance.random() < 0.2:
        del changed[name]
    write_state(tmp_path / "run" / EVALUATION, changed)
    for command in STUDENT:
        call(f"{name} in {EVALUATION}", *command)


@pytest.mark.parametrize("file", ["p.safetensors", "p.npz"])
def test_a_checkpoint_of_someone_else_is_no_file_of_particles(file, distilled, call, tmp_path):
    shutil.copytree(distilled, tmp_path, dirs_exist_ok=True)
    net = {"weight": np.zeros((3, 4), np.float32), "bias": np.zeros(3, np.float16), "steps": np.array(3)}
    for contents in (
        net,
        {"weight": net["weight"]},
        {"steps": net["steps"]},
        {},
        load_file(distilled / "run/student/model.safetensors"),
    ):
        save_file(contents, tmp_path / file) if file.endswith("safetensors") else np.savez(tmp_path / file, **contents)
        assert call("a checkpoint", *PARTICLES, file) == 2


KINDS = [
    np.longdouble,
    np.float16,
    ">f4",
    ">f8",
    ">i2",
    np.uint16,
    np.uint64,
    np.int8,
    object,
    "U3",
    "S3",
    "?",
    "c8",
    "M8[s]",
]
KINDS += [[("a", "f4"), ("b", "f4")], "V4"]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_arrays_of_every_type_are_read_or_refused(kind, distilled, call, tmp_path):
    shutil.copytree(distilled, tmp_path, dirs_exist_ok=True)
    x, votes = np.round(np.load(tmp_path / "x.npy")), np.eye(3)[np.arange(45) % 3].reshape(5, 9, 3)
    converted = []
    for values in (x, votes, np.arange(9) % 3):
        try:
            converted.append(values.astype(kind))
        except (TypeError, ValueError):
            converted.append(np.zeros(values.shape, kind))
    x, votes, labels = converted
    fine = np.dtype(kind).kind in "fiu"
    for suffix in (".npy", ".npz"):
        save = np.save if suffix == ".npy" else np.savez
        save(tmp_path / f"y{suffix}", x)
        save(tmp_path / f"v{suffix}", votes)
        assert call(kind, "predict", "run", f"y{suffix}", "--out", f"out{suffix}.csv") == (0 if fine else 2)
        assert call(kind, *PARTICLES, f"v{suffix}") == (0 if fine else 2)
    np.save(tmp_path / "labels.npy", labels)
    assert call(kind, *PARTICLES, "p.npy") == (0 if fine else 2)
    if fine:
        plain = np.round(np.load(tmp_path / "x.npy")).astype(np.float32)
        np.save(tmp_path / "plain.npy", plain)
        assert call(kind, "predict", "run", "plain.npy", "--out", "plain.csv") == 0
        assert (tmp_path / "plain.csv").read_text() == (tmp_path / "out.npy.csv").read_text()
