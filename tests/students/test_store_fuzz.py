"""Whatever a student's file holds: it is refused in one sentence, or the student in it predicts."""

import random
from pathlib import Path

import pytest
import torch

import opu
from opu.novelty import Novelty
from opu.students import binary_mlp, from_backbone, lenet, mlp
from opu.students.program import Program
from opu.students.signature import made_up
from tests.fuzzing import change_tensors, changed_bytes, changed_json
from tests.several_inputs import ImageAndTable
from tests.student_files import edit

SAVED = Path(__file__).parents[1] / "saved"


def calibrated(student, x):
    student.eval().saw(x)
    student.novelty = Novelty.fit(student(x))
    return student


def several():
    x = {"image": torch.randn(12, 1, 8, 8), "table": torch.randn(12, 4)}
    return opu.students.from_teacher(ImageAndTable(), example=x)


STUDENTS = {
    "mlp": lambda: calibrated(mlp(4, 3, (6, 5)), torch.randn(12, 4)),
    "mlp, shared": lambda: mlp(4, 3, (6,), shared_trunk=True, link="exp"),
    "binary": lambda: binary_mlp(4, 3, (6,), link="softplus"),
    "lenet": lambda: calibrated(lenet(3, (1, 16, 16), (2, 3), 7), torch.randn(12, 256)),
    "program": lambda: opu.load(SAVED / "student-program"),
    "backbone": lambda: calibrated(from_backbone(torch.nn.Tanh(), 4, 3), torch.randn(12, 4)),
    "several inputs": several,
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """One folder for each student, written once."""
    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("students")
    for name, make in STUDENTS.items():
        make().save(root / name)
    return {name: (root / name / "model.safetensors").read_bytes() for name in STUDENTS}


def outcome(folder) -> str:
    """The refusal; or nothing, if the student predicts inputs such as its file describes.

    Types of numbers that operators of a graph do not take show only then.
    """
    try:
        student = opu.load(folder)
    except ValueError as refusal:
        return str(refusal)
    known = student.architecture
    if student.inputs is not None:
        x = made_up(student.inputs)
    else:
        x = torch.randn(2, known["num_features"]) if "num_features" in known else torch.randn(2, *known["image_shape"])
    try:
        prediction = student.predict(x)
    except ValueError as refusal:
        assert isinstance(student.mean_net, Program)
        return str(refusal)
    assert prediction.probabilities.shape == (2, known["num_classes"])
    return ""


def try_all(saved, folder, name, change, times) -> list[str]:
    """What is said of so many changes, each made to the whole file."""
    draw, outcomes = random.Random(name), []
    for number in range(times):
        (folder / "model.safetensors").write_bytes(saved[name])
        draw.seed(f"{name} {number}")  # so that one of them can be tried alone
        change(folder, draw)
        try:
            outcomes.append(outcome(folder))
        except Exception as error:
            raise AssertionError(f"change {number} of {name}") from error
        assert "\n" not in outcomes[-1]
        assert len(outcomes[-1]) < 1000
    return outcomes


def change_texts(folder, draw):
    def change(_, texts):
        key = draw.choice(sorted({"student", "programs"} & texts.keys()))
        texts[key] = changed_json(texts[key], draw)

    edit(folder, change)


def change_weights(folder, draw):
    edit(folder, lambda weights, _: change_tensors(weights, draw))


def change_file(folder, draw):
    path = folder / "model.safetensors"
    path.write_bytes(changed_bytes(path.read_bytes(), draw))


@pytest.mark.parametrize("times", [150, pytest.param(1000, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", STUDENTS)
def test_a_file_with_other_values_is_refused_or_predicts(saved, tmp_path, name, times):
    outcomes = try_all(saved, tmp_path, name, change_texts, times)
    assert outcomes.count("") < times
    assert len(set(outcomes)) > 10


@pytest.mark.parametrize("times", [100, pytest.param(800, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", STUDENTS)
def test_a_file_with_other_weights_is_refused_or_predicts(saved, tmp_path, name, times):
    outcomes = try_all(saved, tmp_path, name, change_weights, times)
    assert outcomes.count("") < times
    assert len(set(outcomes)) > 5


@pytest.mark.parametrize("times", [300, pytest.param(3000, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", STUDENTS)
def test_a_file_with_other_bytes_is_refused_or_holds_the_same(saved, tmp_path, name, times):
    (tmp_path / "model.safetensors").write_bytes(saved[name])
    whole = opu.load(tmp_path)

    def change(folder, draw):
        change_file(folder, draw)
        try:
            again = opu.load(folder)
        except ValueError:
            return
        a, b = whole.state_dict(), again.state_dict()
        assert whole.description() == again.description()
        assert a.keys() == b.keys()
        assert all(torch.equal(a[key], b[key]) for key in a)

    outcomes = try_all(saved, tmp_path, name, change, times)
    assert outcomes.count("") < 0.2 * times


def test_every_byte_counts(saved, tmp_path):
    """All single bytes of a small file, one after another."""
    content, path = saved["mlp, shared"], tmp_path / "model.safetensors"
    path.write_bytes(content)
    whole = opu.load(tmp_path)
    loaded = 0
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        try:
            again = opu.load(tmp_path)
        except ValueError:
            continue
        loaded += 1
        assert again.description() == whole.description()
        assert all(torch.equal(w, again.state_dict()[name]) for name, w in whole.state_dict().items())
    assert loaded < 8  # the padding of the header
