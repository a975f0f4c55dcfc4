"""Held-out inputs of every kind, and what is refused before anything is trained."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import opu

X, OTHER = torch.rand(40, 4), 2 + torch.rand(30, 4)
RECIPE = opu.Recipe(steps=3, batch_size=16, num_particles=4, augment=None)


def distilled(inputs=X, student=None, recipe=RECIPE, **options):
    asked = []

    def teacher(x, s):
        asked.append(x)
        return torch.randn(s, len(x), 3).log_softmax(-1)

    student = student or opu.students.mlp(4, 3, (8,))
    return opu.distill(teacher, student, inputs, recipe=recipe, progress=False, **options), asked


GIVEN = {
    "tensor": lambda: OTHER,
    "array of float64": lambda: OTHER.double().numpy(),
    "features and labels": lambda: (OTHER, torch.zeros(30)),
    "dataset": lambda: TensorDataset(OTHER, torch.zeros(30)),
    "loader": lambda: DataLoader(TensorDataset(OTHER), 7),
    "generator": lambda: iter(OTHER.split(8)),
    "list of arrays": lambda: [row.numpy() for row in OTHER],
}


@pytest.mark.parametrize("make", GIVEN.values(), ids=GIVEN)
def test_given_inputs_are_held_out_and_all_others_trained_on(make):
    result, asked = distilled(held_out=make())
    far = torch.cat([x[x[:, 0] > 1.5] for x in asked])
    assert torch.equal(far.sort(0).values, OTHER.sort(0).values), "each is asked about once"
    assert np.isfinite(result.held_out).all()


def test_a_fraction_may_be_of_any_type_of_numbers():
    for fraction in (0, 0.0, np.float32(0.25), np.float64(0.25)):
        result, _ = distilled(held_out=fraction)
        assert np.isnan(result.held_out).all() == (fraction == 0)


WRONG = {
    "too much": (1.5, r"held_out must be a fraction of the inputs from 0 up to 1, or inputs; got 1\.5"),
    "all": (1, "held_out must be a fraction"),
    "another width": (X[:, :2], r"held_out must have rows like the inputs, of shape \(4,\); got \(2,\)"),
    "none": (X[:0], "at least one row"),
    "an empty loader": (DataLoader(TensorDataset(X[:0]), 2), "held_out inputs must have at least one row; got none"),
    "text": ("validation.csv", r"held_out must be a fraction of the inputs, such as 0.1, or inputs; got"),
}


@pytest.mark.parametrize(("held_out", "sentence"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_held_out_is_refused(held_out, sentence):
    with pytest.raises(ValueError, match=sentence):
        distilled(held_out=held_out)


TEACHERS = {
    "an array": (
        lambda p: p.numpy(),
        r"got ndarray\. Wrap a callable that returns arrays: opu\.teachers\.Function\(f",
    ),
    "probabilities": (torch.exp, r'got plain probabilities.*opu\.teachers\.Function\(f, outputs="probabilities"\)'),
    "logits": (lambda p: p + 3, r'If these are logits.*outputs="logits"'),
    "other rows": (lambda p: p[:, :-1], "one column for each of the 8 inputs"),
    "other classes": (
        lambda p: torch.full((4, 8, 2), 0.5).log(),
        "the student predicts 3 classes but the teacher gives",
    ),
    "always the same": (torch.zeros_like, "must be log-probabilities"),
}


@pytest.mark.parametrize(("change", "sentence"), TEACHERS.values(), ids=TEACHERS)
def test_what_a_teacher_must_not_return_is_refused(change, sentence):
    def teacher(x, s):
        return change(torch.randn(s, len(x), 3).log_softmax(-1))

    with pytest.raises(ValueError, match=sentence):
        opu.distill(teacher, opu.students.mlp(4, 3, (8,)), X, recipe=RECIPE, progress=False)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_networks_of_other_types_are_distilled_on_arrays(dtype):
    student = opu.students.mlp(4, 3, (8,)).to(dtype)
    _, asked = distilled(X.double().numpy(), student)
    assert {x.dtype for x in asked} == {dtype}
    assert {w.dtype for w in student.parameters()} == {dtype}


def test_a_data_frame_is_distilled_on_and_its_texts_are_refused():
    frame = pd.DataFrame(X.numpy(), columns=list("abcd"))
    _, asked = distilled(frame.astype({"a": "float64"}))
    assert all(x.dtype == torch.float32 for x in asked)
    with pytest.raises(ValueError, match="column 'a' of the data frame has type"):
        distilled(frame.assign(a="text"))


def test_a_bank_needs_inputs_of_one_shape():
    def cut(items):
        return torch.stack(items)[:, : 3 + int(items[0][0]) % 2]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(50, 3)

        def forward(self, ids):
            return opu.Dirichlet.from_logits(self.embed(ids).mean(1), torch.zeros(len(ids)))

    ids = torch.arange(40).unsqueeze(1).repeat(1, 5)
    with pytest.raises(ValueError, match="bank= needs inputs of one shape; these come in several"):
        distilled(DataLoader(ids, 5, collate_fn=cut), Net(), dataclasses.replace(RECIPE, bank=4))


def test_the_critic_of_emd_needs_inputs_of_one_size():
    emd = opu.objectives.CriticEMD(critic_steps=1, hidden=4)
    q = opu.Dirichlet.from_logits(torch.zeros(2, 3), torch.zeros(2))
    particles = torch.randn(4, 2, 3).log_softmax(-1)
    assert emd({"a": torch.zeros(2, 3), "b": torch.zeros(2, dtype=torch.int64)}, particles, q).shape == (2,)
    with pytest.raises(
        ValueError, match="the critic of emd reads inputs of one size; it has seen 4 numbers per input, and now got"
    ):
        emd(torch.zeros(2, 5), particles, q)


def test_no_inputs_to_calibrate_or_fit_bounds_on_are_refused():
    student = opu.students.mlp(4, 3, (8,))
    with pytest.raises(ValueError, match="inputs must have at least one row; got none"):
        opu.calibrate(student, iter(()))
    with pytest.raises(ValueError, match="inputs must have at least one row; got none"):
        student.fit_bounds(lambda x, s: torch.zeros(s, len(x), 3), iter(()))
