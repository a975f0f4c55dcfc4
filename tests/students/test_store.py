"""Saved students come back bit for bit, or are refused in one sentence."""

import copy
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import opu
from opu.novelty import Novelty
from opu.students import Sigmoid, Student, from_backbone, lenet, mlp


def trunk() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU())


def trained_trunk() -> nn.Module:
    net = trunk()
    net(torch.randn(50, 4))  # which moves the running statistics
    return net


BUILDERS = {
    "mlp": (lambda: mlp(4, 3, (6, 5)), (4,)),
    "mlp, shared": (lambda: mlp(4, 3, (6, 5), shared_trunk=True, link="softplus"), (4,)),
    "mlp, no hidden layer": (lambda: mlp(4, 2, (), link="exp"), (4,)),
    "lenet": (lambda: lenet(3, (1, 16, 16), (2, 3), 7, link="sigmoid(-1, 3.5)"), (1, 16, 16)),
    "lenet, shared": (lambda: lenet(3, (3, 17, 16), (2, 3), 7, shared_trunk=True), (3, 17, 16)),
    "backbone": (lambda: from_backbone(trained_trunk(), 6, 3), (4,)),
    "backbone, two networks": (lambda: from_backbone(trained_trunk(), 6, 3, shared_trunk=False), (4,)),
    "very exact bounds": (lambda: mlp(4, 3, (6,), link=Sigmoid(-1.23456789012345, 6.98765432109876)), (4,)),
}


def load(name: str, folder: Path) -> Student:
    return opu.load(folder, backbone=trunk() if name.startswith("backbone") else None)


def assert_same_predictions(a: Student, b: Student, x: torch.Tensor) -> None:
    p, q = a.eval()(x), b.eval()(x)
    assert torch.equal(p.mean, q.mean)
    assert torch.equal(p.log_mean, q.log_mean)
    assert torch.equal(p.log_precision, q.log_precision)


@pytest.mark.parametrize("calibrated", [False, True])
@pytest.mark.parametrize("name", BUILDERS)
def test_a_student_comes_back_bit_for_bit(name, calibrated, tmp_path):
    make, shape = BUILDERS[name]
    student, x = make().eval(), torch.randn(40, *shape)
    if calibrated:
        student.novelty = Novelty.fit(student(x))
    student.save(tmp_path / "student")
    again = load(name, tmp_path / "student")
    assert not again.training
    assert (again.link, again.architecture) == (student.link, student.architecture)
    saved, read = student.state_dict(), again.state_dict()
    assert saved.keys() == read.keys()
    assert all(torch.equal(saved[key], read[key]) and saved[key].dtype == read[key].dtype for key in saved)
    assert_same_predictions(student, again, 3 * torch.randn(20, *shape))
    assert (again.novelty is not None) == calibrated
    if calibrated:
        q = student(3 * torch.randn(20, *shape))
        assert torch.equal(again.novelty(q), student.novelty(q))
        assert torch.equal(again.novelty.p_value(q), student.novelty.p_value(q))
        assert again.novelty.threshold(0.05) == student.novelty.threshold(0.05)


def test_a_student_in_double_precision_comes_back_bit_for_bit(tmp_path):
    student = mlp(4, 3, (6,)).double()
    student.save(tmp_path)
    assert_same_predictions(student, opu.load(tmp_path), torch.randn(5, 4, dtype=torch.float64))


def test_a_student_of_the_version_before_is_read(tmp_path):
    student, x = mlp(4, 3, (6,)).eval(), torch.randn(30, 4)
    student.novelty = Novelty.fit(student(x))
    student.save(tmp_path)
    edit_config(tmp_path, format=2, link="slowly_bounded(-2.0, 7.0)")
    edit_weights(tmp_path, lambda weights: weights.update({"novelty.bluntness": weights.pop("novelty.dispersion")}))
    again = opu.load(tmp_path)
    assert_same_predictions(student, again, x)
    assert torch.equal(again.novelty(again(x)), student.novelty(student(x)))


def test_loading_draws_no_random_numbers(tmp_path):
    lenet(3, (1, 16, 16), (2, 3), 7).save(tmp_path)
    before = torch.get_rng_state()
    opu.load(tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_buffer_may_hold_infinite_values_but_not_nan(tmp_path):
    class Masked(nn.Linear):
        def __init__(self, value=-torch.inf):
            super().__init__(4, 6)
            self.register_buffer("mask", torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, value]))

        def forward(self, x):
            return (super().forward(x) + self.mask).exp()

    student = from_backbone(Masked(), 6, 3)
    student.save(tmp_path)
    assert_same_predictions(student, opu.load(tmp_path, backbone=Masked()), torch.randn(5, 4))
    from_backbone(Masked(torch.nan), 6, 3).save(tmp_path)
    assert_refused(tmp_path, "are damaged: trunk.mask holds NaN", backbone=Masked())


def test_a_backbone_that_uses_one_layer_twice_comes_back(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = self.second = nn.Linear(4, 4)

        def forward(self, x):
            return self.second(self.first(x).relu())

    student = from_backbone(Tied(), 4, 3)
    student.save(tmp_path)
    assert_same_predictions(student, opu.load(tmp_path, backbone=Tied()), torch.randn(5, 4))


def test_weights_that_are_not_contiguous_come_back(tmp_path):
    student = mlp(4, 3, (4,))
    student.mean_net[1].weight = nn.Parameter(torch.randn(4, 4).t())
    student.save(tmp_path)
    again = opu.load(tmp_path).state_dict()
    assert all(torch.equal(w, again[name]) for name, w in student.state_dict().items())


def test_saving_leaves_the_student_as_it_was(tmp_path):
    student = mlp(4, 3, (6,)).train()
    before = copy.deepcopy(student.state_dict())
    student.save(tmp_path)
    assert student.training
    assert all(torch.equal(w, before[name]) for name, w in student.state_dict().items())
    assert all(w.requires_grad for w in student.parameters())


def test_the_folder_holds_json_and_safetensors_and_nothing_else(tmp_path):
    student = mlp(4, 3, (6,)).eval()
    student.novelty = Novelty.fit(student(torch.randn(20, 4)))
    student.save(str(tmp_path / "a" / "student"))
    folder = tmp_path / "a" / "student"
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert json.loads((folder / "config.json").read_text()) == {
        "format": 4,
        "kind": "opu student",
        "architecture": "mlp",
        "num_features": 4,
        "num_classes": 3,
        "hidden": [6],
        "shared_trunk": False,
        "link": "softsign(-2.0, 7.0)",
    }
    content = (folder / "model.safetensors").read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    tensors = {name for name in header if name != "__metadata__"}
    assert tensors == set(student.state_dict())
    # Nothing between the header and the numbers, and nothing after them.
    assert len(content) == 8 + int.from_bytes(content[:8], "little") + max(
        header[name]["data_offsets"][1] for name in tensors
    )


def test_saving_over_a_student_replaces_it(tmp_path):
    first = mlp(4, 3, (6,)).eval()
    first.novelty = Novelty.fit(first(torch.randn(20, 4)))
    first.save(tmp_path)
    second = lenet(2, (1, 16, 16), (2, 3), 5, shared_trunk=True, link="exp")
    second.save(tmp_path)
    again = opu.load(tmp_path)
    assert again.architecture == second.architecture
    assert again.novelty is None
    assert_same_predictions(second, again, torch.rand(3, 1, 16, 16))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_a_backbone_gives_its_class_and_keeps_its_own_weights(tmp_path):
    student, net = from_backbone(trained_trunk(), 6, 3), trunk()
    before = {name: w.clone() for name, w in net.state_dict().items()}
    student.save(tmp_path)
    again = opu.load(tmp_path, backbone=net)
    assert all(torch.equal(w, student.trunk.state_dict()[name]) for name, w in again.trunk.state_dict().items())
    assert all(torch.equal(w, before[name]) for name, w in net.state_dict().items())


@pytest.mark.parametrize("shared_trunk", [False, True])
def test_a_student_on_a_backbone_that_knows_its_inputs_needs_nothing_to_be_loaded(tmp_path, shared_trunk):
    student, x = from_backbone(trained_trunk(), 6, 3, shared_trunk=shared_trunk).eval(), torch.randn(5, 4)
    student.saw(x)
    student.save(tmp_path)
    assert_same_predictions(student, opu.load(tmp_path), x)


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    student = mlp(4, 3, (6,)).eval()
    student.novelty = Novelty.fit(student(torch.randn(20, 4)))
    student.save(tmp_path / "student")
    return tmp_path / "student"


def assert_refused(folder: Path, message: str, **options) -> None:
    with pytest.raises(ValueError, match=message) as refusal:
        opu.load(folder, **options)
    assert "\n" not in str(refusal.value)


def edit_config(folder: Path, **changes) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_weights(folder: Path, change) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


@pytest.mark.parametrize("part", [0.0, 0.001, 0.1, 0.9999])
def test_weights_that_were_cut_short_are_refused(folder, part):
    path = folder / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    assert_refused(folder, r"model\.safetensors is not a whole safetensors file .*cut short")


def test_weights_with_something_after_them_are_refused(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes() + b"more")
    assert_refused(folder, r"model\.safetensors is not a whole safetensors file")


@pytest.mark.parametrize("part", [0.0, 0.02, 0.97])
def test_a_description_that_was_cut_short_is_refused(folder, part):
    path = folder / "config.json"
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    assert_refused(folder, r"config\.json is not the description of a student .*cut short")


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\x00", b"[1, 2]", b"null", b'"text"', b"{}", b'{"kind": 1}', 10**5 * b"["]
)
def test_a_garbled_description_is_refused(folder, content):
    (folder / "config.json").write_bytes(content)
    assert_refused(folder, r"config\.json is not the description of a student")


@pytest.mark.parametrize("changes", [{"format": 1}, {"format": "3"}, {"kind": "opu teacher"}, {"kind": None}])
def test_another_version_or_kind_is_refused(folder, changes):
    edit_config(folder, **changes)
    assert_refused(folder, "this release reads 'opu student', version 4")


@pytest.mark.parametrize("name", ["resnet", None, 3])
def test_an_unknown_architecture_is_refused(folder, name):
    edit_config(folder, architecture=name)
    assert_refused(folder, f"one of mlp, lenet, from_backbone, binary_mlp, from_teacher; this one says {name!r}")


MISFITS = {
    "unknown option": ("mlp", {"depth": 3}),
    "features in words": ("mlp", {"num_features": "four"}),
    "no layers": ("mlp", {"hidden": None}),
    "layers in words": ("mlp", {"hidden": ["six"]}),
    "negative width": ("mlp", {"hidden": [-6]}),
    "no link": ("mlp", {"link": None}),
    "shape of one number": ("lenet", {"image_shape": 5}),
    "shape of one axis": ("lenet", {"image_shape": [1]}),
    "no channels": ("lenet", {"channels": None}),
    "negative hidden": ("lenet", {"hidden": -3}),
}


@pytest.fixture(scope="module")
def refusals(tmp_path_factory):
    """What loading says, in a process of its own where the test run's check of types does not step in before."""
    folder = tmp_path_factory.mktemp("misfits")
    for name, (architecture, changes) in MISFITS.items():
        student = mlp(4, 3, (6,)) if architecture == "mlp" else lenet(3, (1, 16, 16), (2, 3), 7)
        student.save(folder / name)
        edit_config(folder / name, **changes)
    program = """if True:
        import json, pathlib, sys, opu
        found = {}
        for folder in pathlib.Path(sys.argv[1]).iterdir():
            try:
                found[folder.name] = ["loaded", str(opu.load(folder).link)]
            except Exception as error:
                found[folder.name] = [type(error).__name__, str(error)]
        print(json.dumps(found))
    """
    done = subprocess.run([sys.executable, "-c", program, folder], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", MISFITS)
def test_a_description_that_does_not_fit_its_architecture_is_refused(refusals, name):
    kind, message = refusals[name]
    assert (kind, "\n" in message) == ("ValueError", False), message
    assert f"does not fit {MISFITS[name][0]}" in message


def test_an_unknown_link_is_refused(folder):
    edit_config(folder, link="tanh")
    assert_refused(folder, "a link is exp, softplus, sigmoid")


@pytest.mark.parametrize(
    "changes", [{"num_features": 5}, {"num_classes": 4}, {"hidden": [7]}, {"shared_trunk": True}], ids=str
)
def test_weights_of_other_shapes_are_refused(folder, changes):
    edit_config(folder, **changes)
    assert_refused(folder, "do not fit their description: .* The two files come from different students")


def test_files_of_two_students_are_refused(folder, tmp_path):
    mlp(4, 3, (7,)).save(tmp_path / "other")
    shutil.copy(tmp_path / "other" / "model.safetensors", folder)
    assert_refused(folder, r"mean_net\.1\.bias should be \(6,\), the file has \(7,\)")


@pytest.mark.parametrize("name", ["mean_net.1.weight", "precision_net.3.bias"])
def test_missing_and_surplus_weights_are_refused(folder, name):
    edit_weights(folder, lambda weights: weights.update(surplus=torch.zeros(2)))
    assert_refused(folder, r"surplus should be nothing, the file has \(2,\)")
    edit_weights(folder, lambda weights: (weights.pop("surplus"), weights.pop(name)))
    assert_refused(folder, rf"{name} should be \(.*\), the file has nothing")


@pytest.mark.parametrize("name", ["novelty.entropy", "novelty.scores"])
def test_half_a_calibration_is_refused(folder, name):
    edit_weights(folder, lambda weights: weights.pop(name))
    assert_refused(folder, r"novelty")


def test_an_unknown_part_of_a_calibration_is_refused(folder):
    edit_weights(folder, lambda weights: weights.update({"novelty.other": torch.zeros(2)}))
    assert_refused(folder, r"novelty\.other|other")


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", ["mean_net.1.weight", "novelty.scores"])
def test_weights_that_are_not_finite_are_refused(folder, name, value):
    edit_weights(folder, lambda weights: weights[name].view(-1)[:1].fill_(value))
    assert_refused(folder, f"are damaged: {name} holds NaN or infinite values")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_refused(folder, name):
    (folder / name).unlink()
    assert_refused(folder, f"there is no saved student in .*student: {name} is missing")


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    assert_refused(tmp_path / "nowhere", "there is no saved student in .*nowhere")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_the_path_of_a_file_in_place_of_its_folder_is_refused(folder, name):
    assert_refused(folder / name, "there is no saved student in")


def test_a_student_on_a_backbone_needs_it(tmp_path):
    from_backbone(trunk(), 6, 3).save(tmp_path)
    assert_refused(tmp_path, r"stands on a network of your own, .*give it in Python: opu\.load\(folder, backbone=net\)")
    assert_refused(tmp_path, "do not fit their description", backbone=nn.Sequential(nn.Linear(4, 6)))


def test_a_refusal_leaves_the_backbone_as_it_was(tmp_path):
    from_backbone(trunk(), 6, 3).save(tmp_path)
    edit_weights(tmp_path, lambda weights: weights["mean_net.bias"].fill_(torch.nan))
    net = trunk()
    before = copy.deepcopy(net.state_dict())
    assert_refused(tmp_path, "are damaged", backbone=net)
    assert all(torch.equal(w, before[name]) for name, w in net.state_dict().items())


def test_a_student_put_together_by_hand_is_refused_and_nothing_is_written(tmp_path):
    with pytest.raises(ValueError, match="this one was put together by hand"):
        Student(nn.Linear(4, 3), nn.Linear(4, 1)).save(tmp_path / "student")
    assert not (tmp_path / "student").exists()


def test_saving_over_a_file_is_refused_and_leaves_it_alone(tmp_path):
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(ValueError, match=r"a student is saved into a folder; .*notes is a file"):
        mlp(4, 3, (6,)).save(tmp_path / "notes")
    assert (tmp_path / "notes").read_text() == "mine"


def test_saving_below_a_file_is_refused_and_leaves_it_alone(tmp_path):
    (tmp_path / "notes").write_text("mine")
    with pytest.raises((ValueError, OSError), match=r"could not write|is a file"):
        mlp(4, 3, (6,)).save(tmp_path / "notes" / "student")
    assert (tmp_path / "notes").read_text() == "mine"
