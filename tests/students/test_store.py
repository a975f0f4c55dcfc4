"""Saved students come back bit for bit, or are refused in one sentence."""

import copy
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import opu
from opu.novelty import Novelty
from opu.students import Sigmoid, Student, from_backbone, lenet, mlp
from opu.tensor_file import from_file
from tests.student_files import as_before, edit, edit_description, edit_weights

SAVED = Path(__file__).parents[1] / "saved"


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


@pytest.mark.parametrize("name", ["student-mlp", "student-program"])
def test_a_folder_that_version_4_wrote_is_read_and_saved_anew(name, tmp_path):
    """What the release before wrote, and the predictions that it made then."""
    known = json.loads((SAVED / "expected.json").read_text())[name]
    x = torch.tensor(known["inputs"])
    student = opu.load(SAVED / name)
    shutil.copytree(SAVED / name, tmp_path, dirs_exist_ok=True)
    opu.load(tmp_path).save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    for each in (student, opu.load(tmp_path)):
        q = each(x)
        torch.testing.assert_close(q.mean, torch.tensor(known["mean"]))
        torch.testing.assert_close(q.log_precision, torch.tensor(known["log_precision"]))
        if "novelty" in known:
            # Ties have slack now.
            torch.testing.assert_close(each.novelty(q), torch.tensor(known["novelty"]), rtol=0, atol=0.2)


def test_a_student_of_version_2_is_read(tmp_path):
    student, x = mlp(4, 3, (6,)).eval(), torch.randn(30, 4)
    student.novelty = Novelty.fit(student(x))
    student.save(tmp_path)
    edit_weights(tmp_path, lambda weights: weights.update({"novelty.bluntness": weights.pop("novelty.dispersion")}))
    as_before(tmp_path, 2, link="slowly_bounded(-2.0, 7.0)")
    again = opu.load(tmp_path)
    assert_same_predictions(student, again, x)
    assert torch.equal(again.novelty(again(x)), student.novelty(student(x)))


def test_a_student_of_version_3_is_read(tmp_path):
    student = mlp(4, 3, (6,))
    student.save(tmp_path)
    as_before(tmp_path, 3, input_shape=[2, 2], input_type="float32")
    again = opu.load(tmp_path)
    assert again.inputs == {"shape": [2, 2], "type": "float32"}
    assert_same_predictions(student, again, torch.randn(5, 4))


def test_what_the_file_says_wins_over_a_description_of_before(tmp_path):
    """A kill after the file was replaced, and before the old description was removed."""
    mlp(4, 3, (6,)).save(tmp_path)
    as_before(tmp_path)
    former = (tmp_path / "config.json").read_text()
    student = mlp(4, 3, (6,), link="exp")
    student.save(tmp_path)
    (tmp_path / "config.json").write_text(former)
    again = opu.load(tmp_path)
    assert str(again.link) == "exp"
    assert_same_predictions(student, again, torch.randn(5, 4))


def test_a_description_that_is_not_of_a_student_is_not_removed(tmp_path):
    (tmp_path / "config.json").write_text('{"distill": {"epochs": 3}}')
    mlp(4, 3, (6,)).save(tmp_path)
    assert (tmp_path / "config.json").read_text() == '{"distill": {"epochs": 3}}'
    assert opu.load(tmp_path).architecture["hidden"] == [6]


def test_sizes_that_are_numpys_are_saved(tmp_path):
    student = mlp(4, 3, (6,))
    student.architecture |= {"num_classes": np.int64(3), "hidden": [np.int64(6)]}  # which an unchecked mlp() keeps
    student.save(tmp_path)
    assert_same_predictions(student, opu.load(tmp_path), torch.randn(5, 4))


def test_a_student_in_a_run_folder_is_not_hidden_by_the_runs_own(tmp_path):
    mlp(4, 3, (6,)).save(tmp_path / "student")
    with pytest.raises(ValueError, match=r"is a run folder, with a student in .* that opu\.load would find first"):
        mlp(4, 3, (5,)).save(tmp_path)
    assert opu.load(tmp_path).architecture["hidden"] == [6]


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


def test_the_folder_holds_one_safetensors_file_and_nothing_else(tmp_path):
    student = mlp(4, 3, (6,)).eval()
    student.novelty = Novelty.fit(student(torch.randn(20, 4)))
    student.save(str(tmp_path / "a" / "student"))
    folder = tmp_path / "a" / "student"
    assert [path.name for path in folder.iterdir()] == ["model.safetensors"]
    content = (folder / "model.safetensors").read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    metadata = header.pop("__metadata__")
    assert metadata.keys() == {"format", "student", "checksum"}
    assert json.loads(metadata["student"]) == {
        "format": 5,
        "kind": "opu student",
        "architecture": "mlp",
        "num_features": 4,
        "num_classes": 3,
        "hidden": [6],
        "shared_trunk": False,
        "family": "dirichlet",
        "link": "softsign(-2.0, 7.0)",
    }
    assert set(header) == set(student.state_dict())
    # Nothing between the header and the numbers, and nothing after them.
    assert len(content) == 8 + int.from_bytes(content[:8], "little") + max(
        each["data_offsets"][1] for each in header.values()
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
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


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
    as_before(folder)
    path = folder / "config.json"
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    assert_refused(folder, r"config\.json is not the description of a student .*cut short")


GARBLED = [b"[1, 2]", b"null", b'"text"', b"{}", b'{"kind": 1}', 10**5 * b"[", b'{"kind": NaN, "format": 4}']


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", *GARBLED], ids=range(8))
def test_a_garbled_description_is_refused(folder, content):
    as_before(folder)
    (folder / "config.json").write_bytes(content)
    assert_refused(folder, r"config\.json is not the description of a student")


@pytest.mark.parametrize("content", GARBLED, ids=range(7))
def test_a_garbled_description_in_the_file_is_refused(folder, content):
    edit(folder, lambda _, texts: texts.update(student=content.decode()))
    assert_refused(folder, r"model\.safetensors is not the description of a student")


@pytest.mark.parametrize("changes", [{"format": 6}, {"format": 4}, {"format": "5"}, {"format": [5]}, {"kind": None}])
def test_another_version_or_kind_is_refused(folder, changes):
    edit_description(folder, **changes)
    assert_refused(folder, "this release reads 'opu student', version 5")


@pytest.mark.parametrize("changes", [{"format": 1}, {"format": 5}, {"kind": "opu teacher"}])
def test_another_version_of_before_is_refused(folder, changes):
    as_before(folder, **({"version": 4} | changes if "kind" in changes else {"version": changes["format"]}))
    if "kind" in changes:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    assert_refused(folder, "versions 2 to 4 with a config.json")


def test_a_file_of_today_without_its_checksum_is_refused(folder):
    weights, texts = from_file(folder / "model.safetensors")
    del texts["checksum"]
    save_file({name: w.clone() for name, w in weights.items()}, folder / "model.safetensors", metadata=texts)
    assert_refused(folder, "its checksum is missing")


@pytest.mark.parametrize("name", ["resnet", None, 3, ["mlp"], {"mlp": 1}], ids=str)
def test_an_unknown_architecture_is_refused(folder, name):
    edit_description(folder, architecture=name)
    said = re.escape(repr(name))
    assert_refused(folder, f"one of mlp, lenet, from_backbone, binary_mlp, from_teacher; this one says {said}")


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
        edit_description(folder / name, **changes)
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
    edit_description(folder, link="tanh")
    assert_refused(folder, "a link is exp, softplus, sigmoid")


@pytest.mark.parametrize(
    "changes", [{"num_features": 6}, {"num_classes": 4}, {"hidden": [4]}, {"shared_trunk": True}], ids=str
)
def test_weights_of_other_shapes_are_refused(folder, changes):
    edit_description(folder, **changes)
    assert_refused(folder, "do not fit their description: .* should be .*, the file has")


def test_files_of_two_students_are_refused(folder, tmp_path):
    mlp(4, 3, (4,)).save(tmp_path / "other")
    as_before(folder)
    as_before(tmp_path / "other")
    shutil.copy(tmp_path / "other" / "model.safetensors", folder)
    assert_refused(folder, "hidden asks for 6, a size that none of its weights has")


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
    as_before(folder)
    (folder / name).unlink()
    assert_refused(folder, f"there is no saved student in .*student: {name} is missing")


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    assert_refused(tmp_path / "nowhere", "there is no saved student in .*nowhere")


def test_the_path_of_a_file_in_place_of_its_folder_is_refused(folder):
    assert_refused(folder / "model.safetensors", "there is no saved student in")


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


# --- what a description, a calibration and a graph must hold -----------------------------------------------------------

SHAPE = {"shape": [1], "type": "float32"}
WRONG = {
    "a size in words": ({"num_features": "four"}, "num_features must be a positive integer, not 'four'"),
    "a size of truth": ({"num_classes": True}, "num_classes must be a positive integer, not True"),
    "half a size": ({"hidden": [6.5]}, "hidden must be a positive integer, not 6.5"),
    "no unit": ({"hidden": [0]}, "hidden must be a positive integer, not 0"),
    "a number for a list": ({"hidden": 6}, "hidden must be a list of some numbers, not 6"),
    "a number for a flag": ({"shared_trunk": 0}, "shared_trunk must be true or false, not 0"),
    "an entry too many": (
        {"depth": 3},
        "'depth' is not one of num_features, hidden, family, link, num_classes, shared_trunk",
    ),
    "a long link": ({"link": "exp" * 100}, "link must be a short text, not 'expexp"),
    "a link in a list": ({"link": ["exp"]}, "link must be a short text"),
    "bounds without a difference": ({"link": "sigmoid(-1e308, 1e308)"}, "bounds of a link .* at most 1e\\+30 in size"),
    "inputs in words": ({"inputs": "rows"}, "described by a shape, or by its parts in a dict or tuple, not by 'rows'"),
    "inputs of no parts": ({"inputs": {"dict": {}}}, "described by a shape, or by its parts"),
    "inputs of both kinds": ({"inputs": {"shape": [4], "type": "float32", "dict": {}}}, "described by a shape"),
    "a shape of texts": ({"inputs": {"shape": ["4"], "type": "float32"}}, "must be a list of positive integers"),
    "a negative shape": ({"inputs": {"shape": [-4], "type": "float32"}}, "must be a list of positive integers"),
    "another type": (
        {"inputs": {"shape": [4], "type": "load"}},
        "the type of an input must be one of bool, .*not 'load'",
    ),
    "a type in a list": ({"inputs": {"shape": [4], "type": []}}, "the type of an input must be one of"),
    "other columns": ({"inputs": {"shape": [4], "type": "int64", "columns": ["a"]}}, "the columns of an input must be"),
    "many values": ({"inputs": {"shape": [2**28], "type": "int64"}}, "would have more than 134,217,728 values"),
    "many parts": (
        {"inputs": {"tuple": dict.fromkeys(map(str, range(1001)), SHAPE)}},
        "have 1,001 parts; at most 1,000",
    ),
    "another first layer": (
        {"inputs": {"shape": [2, 3], "type": "float32"}},
        r"other sizes than its first layer takes",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_description_of_wrong_values_is_refused(folder, name):
    changes, message = WRONG[name]
    edit_description(folder, **changes)
    assert_refused(folder, f"does not fit mlp .*{message}")


@pytest.mark.parametrize("key", ["link", "num_classes", "num_features", "hidden"])
def test_a_description_without_an_entry_is_refused(folder, key):
    def change(_, texts):
        texts["student"] = json.dumps({k: v for k, v in json.loads(texts["student"]).items() if k != key})

    edit(folder, change)
    assert_refused(folder, f"{key} is missing")


def test_a_layer_that_the_network_does_not_have_is_refused(tmp_path):
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    opu.students.from_teacher(net, example=torch.randn(2, 4)).save(tmp_path)
    edit_description(tmp_path, head="9.last")
    assert_refused(tmp_path, "does not fit the network", backbone=net)
    edit_description(tmp_path, head=3)
    assert_refused(tmp_path, "head must be a text, not 3", backbone=net)


CALIBRATIONS = {
    "unsorted": ({"novelty.entropy": torch.tensor([2.0, 1.0])}, r"novelty\.entropy is not sorted"),
    "of one value": ({"novelty.scores": torch.tensor([2.0])}, r"novelty\.scores should be two or more numbers"),
    "of a table": ({"novelty.scores": torch.zeros(2, 2)}, r"novelty\.scores should be two or more numbers"),
    "of integers": ({"novelty.scores": torch.arange(9)}, r"novelty\.scores should be two or more numbers"),
    "of eight bits": ({"novelty.scores": torch.zeros(9).to(torch.float8_e5m2)}, "should be two or more numbers"),
    "of another share": ({"novelty.blend": torch.tensor([1.5, 0.0])}, "must lie between 0 and 1; got 1.5"),
    "of three shares": ({"novelty.blend": torch.tensor([0.5, 0.0, 0.0])}, "hold no calibration of novelty"),
}


@pytest.mark.parametrize("name", CALIBRATIONS)
def test_a_calibration_that_cannot_be_used_is_refused(folder, name):
    changes, message = CALIBRATIONS[name]
    edit_weights(folder, lambda weights: weights.update(changes))
    assert_refused(folder, f"hold no calibration of novelty that can be used: .*{message}|{message}")


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int64, torch.complex64, torch.float8_e4m3fn, torch.float64], ids=str
)
def test_weights_of_another_type_are_refused(folder, dtype):
    edit_weights(folder, lambda weights: weights.update({"mean_net.1.bias": weights["mean_net.1.bias"].to(dtype)}))
    assert_refused(folder, "must be floating-point numbers of one type of at least 16 bits; they are .*float32")


def test_weights_that_the_users_class_does_not_take_are_refused(tmp_path):
    from_backbone(trunk(), 6, 3).save(tmp_path)
    edit_weights(tmp_path, lambda weights: weights.update({"trunk.0.bias": weights["trunk.0.bias"].long()}))
    assert_refused(tmp_path, "do not fit their network", backbone=trunk())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_students_of_other_precision_come_back(dtype, tmp_path):
    student = mlp(4, 3, (6,)).to(dtype)
    student.save(tmp_path)
    assert_same_predictions(student, opu.load(tmp_path), torch.randn(5, 4).to(dtype))
