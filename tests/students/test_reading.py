"""How students read inputs: numbers of their own type, integers as tokens, and clear words for what they cannot read."""

import copy
import functools

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import opu
from opu.distillation.preparation import prepare
from opu.students.reading import batches_for, conversion, trial
from opu.students.signature import described, made_up
from opu.students.start import shares_parameters

X = torch.randn(12, 4)


def linear(dtype=torch.float32):
    return opu.students.mlp(4, 3, (8,)).to(dtype)


class Tokens(nn.Module):
    def __init__(self, table=20):
        super().__init__()
        self.embed, self.head = nn.Embedding(table, 4), nn.Linear(4, 3)

    def forward(self, ids):
        return self.head(self.embed(ids).mean(1))


class Pixels(nn.Module):
    """Takes bytes, and scales them itself."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        assert x.dtype == torch.uint8
        return self.head(x.flatten(1) / 255)


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.image = Tokens(), nn.Linear(16, 3)

    def forward(self, ids, image):
        return self.tokens(ids) + self.image(image.flatten(1))


def student_of(net):
    return opu.students.Student(net, nn.Sequential(copy.deepcopy(net), nn.Linear(3, 1)))


def pair(net):
    class Precision(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.head = copy.deepcopy(net), nn.Linear(3, 1)

        def forward(self, ids, image):
            return self.head(self.net(ids, image))

    return opu.students.Student(net, Precision())


IDS = torch.randint(20, (12, 6))
IMAGES = torch.randint(256, (12, 4, 4), dtype=torch.uint8)
READ = {
    "floats": (linear, X, torch.float32),
    "float64": (linear, X.double(), torch.float32),
    "half": (linear, X.half(), torch.float32),
    "a network of float64": (lambda: linear(torch.float64), X, torch.float64),
    "a network of bfloat16": (lambda: linear(torch.bfloat16), X, torch.bfloat16),
    "whole numbers for a linear layer": (linear, (9 * X).long(), torch.float32),
    "truth values for a linear layer": (linear, X > 0, torch.float32),
    "bytes for a network of floats": (lambda: opu.students.mlp(16, 3, (8,)), IMAGES, torch.float32),
    "bytes for a network of bytes": (lambda: student_of(Pixels()), IMAGES, torch.uint8),
    "tokens": (lambda: student_of(Tokens()), IDS, torch.int64),
    "tokens as int32": (lambda: student_of(Tokens()), IDS.int(), torch.int32),
}


@pytest.mark.parametrize(("make", "x", "expected"), READ.values(), ids=READ)
def test_numbers_become_what_the_student_can_read(make, x, expected):
    student = make()
    found = conversion(student, x[:2])(x)
    assert found.dtype == expected
    assert torch.equal(found.double(), x.to(expected).double())
    prediction = student.predict(x.numpy())
    np.testing.assert_allclose(prediction.probabilities.sum(1), 1, atol=1e-3)
    with torch.no_grad():
        np.testing.assert_allclose(prediction.probabilities, student(found).mean.numpy(), atol=1e-3)


def test_tokens_and_pixels_side_by_side_are_told_apart():
    student = pair(Both())
    found = conversion(student, (IDS[:2], IMAGES[:2]))((IDS, IMAGES))
    assert [t.dtype for t in found] == [torch.int64, torch.float32]
    assert len(student.predict((IDS, IMAGES))) == 12
    assert len(student.predict({"image": IMAGES.numpy(), "ids": IDS.numpy(), "labels": np.zeros(12)})) == 12


WRONG = {
    "an array": (
        lambda: X.numpy(),
        r"a student is called with tensors, student\(x\); got ndarray.*student\.predict\(x\)",
    ),
    "lists": (lambda: X.tolist(), r"called with tensors, student\(x\); got list"),
    "a dict of arrays": (lambda: {"x": X.numpy()}, r"called with tensors, student\(x\); got dict"),
    "nothing": (lambda: None, r"called with tensors, student\(x\); got NoneType"),
    "float64": (lambda: X.double(), r"takes numbers of type float32; got float64\. Convert them"),
    "one example": (lambda: X[0], r"got shape \(4,\), which is that of a single example.*x\[None\]"),
    "a number": (lambda: X[0, 0], r"got shape \(\), which is that of a single example"),
    "another width": (lambda: X[:, :3], r"the student cannot read inputs of shape \(12, 3\)"),
    "whole numbers": (lambda: X.long(), r"the student cannot read inputs of shape \(12, 4\)"),
    "a dict": (lambda: {"x": X, "z": X}, r"the student cannot read inputs of parts x \(12, 4\), z \(12, 4\)"),
}


@pytest.mark.parametrize(("make", "sentence"), WRONG.values(), ids=WRONG)
def test_a_student_says_why_it_cannot_read_what_it_is_called_with(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        linear()(make())


def test_a_data_frame_belongs_into_predict():
    frame = pd.DataFrame(X.numpy())
    with pytest.raises(ValueError, match=r"called with tensors, student\(x\); got DataFrame.*student\.predict"):
        linear()(frame)


def test_a_single_example_is_refused_where_its_shape_is_known():
    student = linear()
    student.saw(X)
    for x in (X[0], X[0].numpy()):
        with pytest.raises(ValueError, match=r"got shape \(4,\), which is that of a single example"):
            student.predict(x)


def test_a_student_that_cannot_read_the_inputs_says_so_before_anything_is_done():
    with pytest.raises(ValueError, match=r"the student cannot read inputs of shape \(2, 3\)"):
        list(batches_for(linear(), X[:, :3]))


def test_a_trial_leaves_no_trace():
    net = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3)).train()
    net[1].eval()
    before, state = copy.deepcopy(net.state_dict()), torch.get_rng_state()
    with trial(net):
        net(X)
        torch.rand(3)
        assert not net.training
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), state)
    assert [layer.training for layer in net] == [True, False, True]
    assert all(torch.equal(w, before[name]) for name, w in net.state_dict().items())


# Signatures


@pytest.mark.parametrize("x", [X, IDS, {"ids": IDS, "attention_mask": IDS > 3}, (X, IMAGES)])
def test_inputs_are_made_up_from_their_description(x):
    found = made_up(described(x), num_rows=5)
    assert described(found) == described(x)
    if isinstance(x, dict):
        assert found["attention_mask"].all()
    assert made_up(described(X), floats=torch.float16).dtype == torch.float16


def test_a_type_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="'nonsense' is no type of numbers"):
        made_up({"shape": [2], "type": "nonsense"})


# Weights of a teacher


def network():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))


class Method:
    def __init__(self, net):
        self.net = net

    def particles(self, x, num_particles):
        return torch.stack([self.net(x) for _ in range(num_particles)]).log_softmax(-1)


def function_of(net):
    return lambda x, s: Method(net).particles(x, s)


HOLDERS = {
    "dropout": opu.teachers.MCDropout,
    "ensemble": lambda net: opu.teachers.Ensemble([network(), net]),
    "closure": function_of,
    "partial": lambda net: functools.partial(lambda n, x, s: Method(n).particles(x, s), net),
    "partial with a keyword": lambda net: functools.partial(lambda x, s, n: Method(n).particles(x, s), n=net),
    "method": lambda net: Method(net).particles,
    "function in a teacher": lambda net: opu.teachers.Function(function_of(net)),
    "default": lambda net: lambda x, s, n=net: Method(n).particles(x, s),
}


@pytest.mark.parametrize("holder", HOLDERS.values(), ids=HOLDERS)
def test_a_student_that_shares_weights_with_its_teacher_is_refused(holder):
    net = network()
    student = opu.students.Student(net, nn.Linear(4, 1))
    with pytest.raises(ValueError, match="the student shares weights with its teacher"):
        prepare(holder(net), student, X, opu.Recipe(), 0.1)
    assert not shares_parameters(holder(copy.deepcopy(net)), student)


NET = network()


def of_the_module(x, s):
    return Method(NET).particles(x, s)


def with_a_module_around(net):
    import torch  # a module in a closure is not searched

    return lambda x, s: torch.stack([net(x) for _ in range(s)]).log_softmax(-1)


def test_weights_that_a_function_finds_in_its_module_count_too():
    net = network()
    assert shares_parameters(with_a_module_around(net), opu.students.Student(net, nn.Linear(4, 1)))
    assert not shares_parameters(with_a_module_around(net), linear())
    assert shares_parameters(of_the_module, opu.students.Student(NET, nn.Linear(4, 1)))
    assert not shares_parameters(of_the_module, linear())


@pytest.mark.parametrize("shared_trunk", [True, False])
def test_a_backbone_stays_as_it_was(shared_trunk):
    trunk = network()
    before = copy.deepcopy(trunk.state_dict())
    student = opu.students.from_backbone(trunk, 3, 3, shared_trunk=shared_trunk)
    assert not shares_parameters(trunk, student)
    recipe = opu.Recipe(steps=5, num_particles=4, start_from_teacher=False)
    opu.distill(opu.teachers.MCDropout(trunk), student, X, recipe=recipe, progress=False)
    assert all(torch.equal(w, before[name]) for name, w in trunk.state_dict().items())
    assert trunk.training


@pytest.mark.parametrize("shared_trunk", [True, False])
def test_a_backbone_with_several_inputs_is_called_as_it_takes_them(shared_trunk):
    student = opu.students.from_backbone(Both(), 3, 2, shared_trunk=shared_trunk)
    for x in ((IDS, IMAGES), {"image": IMAGES, "ids": IDS}):
        assert student.predict(x).probabilities.shape == (12, 2)
