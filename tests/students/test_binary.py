"""A classifier with one output for two classes, from the teacher to the exported file."""

import numpy as np
import pytest
import torch
from torch import nn

import opu
from opu.export import write
from opu.students import from_teacher
from opu.teachers import Ensemble, MCDropout, WeightSamples


class Net(nn.Module):
    def __init__(self, form: str = "column"):
        super().__init__()
        self.form = form
        self.first, self.norm, self.drop, self.head = nn.Linear(4, 8), nn.LayerNorm(8), nn.Dropout(0.5), nn.Linear(8, 1)

    def forward(self, x):
        z = self.head(self.drop(self.norm(self.first(x)).relu()))
        z = {
            "column": lambda: z,
            "row": lambda: z[:, 0],
            "squeezed": lambda: z.squeeze(-1),
            "scaled": lambda: 3 * z,
        }.get(self.form, lambda: z)()
        if self.form == "sigmoid":
            return torch.sigmoid(z)
        return nn.functional.logsigmoid(z) if self.form == "logsigmoid" else z


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1))


FORMS = {
    "column": (Net, "logits"),
    "row": (lambda: Net("row"), "logits"),
    "squeezed": (lambda: Net("squeezed"), "logits"),
    "scaled": (lambda: Net("scaled"), "logits"),  # does not end in its linear layer
    "sigmoid": (lambda: Net("sigmoid"), "probabilities"),
    "logsigmoid": (lambda: Net("logsigmoid"), "log_probabilities"),
    "mlp": (mlp, "logits"),
}
every = pytest.mark.parametrize("form", FORMS)


def teacher_of(form: str) -> MCDropout:
    torch.manual_seed(1)
    make, outputs = FORMS[form]
    return MCDropout(make(), outputs=outputs, binary=True)


def inputs(rows: int = 40) -> torch.Tensor:
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(3))


def probability(teacher: MCDropout) -> torch.Tensor:
    with torch.no_grad():
        value = teacher.net.eval()(inputs()).reshape(-1)
    return {"logits": torch.sigmoid, "probabilities": lambda p: p, "log_probabilities": torch.exp}[teacher.outputs](
        value
    )


@every
@pytest.mark.parametrize("shared_trunk", [False, True])
def test_the_student_starts_with_the_probabilities_of_the_network(form, shared_trunk):
    teacher = teacher_of(form)
    if shared_trunk and form == "scaled":
        with pytest.raises(ValueError, match="shared_trunk=True needs a network that ends in a linear layer"):
            from_teacher(teacher, shared_trunk=True)
        return
    student = from_teacher(teacher, shared_trunk=shared_trunk)
    p = probability(teacher)
    torch.testing.assert_close(student(inputs()).mean, torch.stack([1 - p, p], 1), rtol=1e-4, atol=1e-6)


@every
@pytest.mark.parametrize("shared_trunk", [False, True])
def test_it_is_distilled_saved_and_loaded(form, shared_trunk, tmp_path):
    if shared_trunk and form == "scaled":
        return
    teacher, x = teacher_of(form), inputs(80)
    student = from_teacher(teacher, shared_trunk=shared_trunk)
    opu.distill(teacher, student, x, recipe=opu.Recipe(epochs=2, num_particles=8), out=tmp_path / "run")
    wanted = student.predict(x).probabilities
    assert wanted.shape == (80, 2)
    assert np.abs(wanted - teacher(x, 400).exp().mean(0).numpy()).max() < 0.25
    student.save(tmp_path / "student")
    np.testing.assert_allclose(opu.load(tmp_path / "student").predict(x).probabilities, wanted, atol=1e-6)
    np.testing.assert_allclose(opu.load(tmp_path / "run").predict(x).probabilities, wanted, atol=1e-6)
    if form != "mlp":
        again = opu.load(tmp_path / "student", backbone=FORMS[form][0]())
        np.testing.assert_allclose(again.predict(x).probabilities, wanted, atol=1e-6)


@pytest.mark.parametrize(("form", "shared_trunk"), [("row", False), ("sigmoid", True), ("mlp", False)])
def test_it_is_exported(form, shared_trunk, tmp_path):
    import onnxruntime as runtime

    student, x = from_teacher(teacher_of(form), shared_trunk=shared_trunk), inputs()
    write(student, tmp_path / "student.onnx", x)
    session = runtime.InferenceSession(tmp_path / "student.onnx")
    names = [each.name for each in session.get_outputs()]
    found = dict(zip(names, session.run(None, {session.get_inputs()[0].name: x.numpy()}), strict=True))
    np.testing.assert_allclose(found["probabilities"], student.predict(x).probabilities, atol=1e-5)


@pytest.mark.parametrize("kind", ["ensemble", "weight samples"])
def test_other_teachers_with_one_output_are_distilled(kind):
    nets = [Net() for _ in range(3)]
    teacher = (
        Ensemble(nets, binary=True)
        if kind == "ensemble"
        else WeightSamples(nets[0], [net.state_dict() for net in nets], binary=True)
    )
    student = from_teacher(teacher)
    opu.distill(teacher, student, inputs(60), recipe=opu.Recipe(epochs=1, num_particles=3))
    assert student.predict(inputs()).probabilities.shape == (40, 2)


def test_an_mlp_with_one_logit_becomes_one_of_ours():
    student = from_teacher(teacher_of("mlp"))
    assert student.architecture["architecture"] == "mlp"
    assert student.architecture["num_classes"] == 2


@pytest.mark.parametrize("example", [None, inputs(3)], ids=["without an example", "with one"])
@pytest.mark.parametrize("make", [Net, mlp, lambda: Net("row")], ids=["network", "mlp", "row"])
def test_a_plain_network_with_one_output_is_refused_with_the_cure(make, example):
    if example is None and make not in (Net, mlp):
        return  # what it does after its last layer is unknown without an example
    with pytest.raises(ValueError, match=r"gives a single output per input\. .*MCDropout\(net, binary=True\)"):
        from_teacher(make(), example=example)


def test_a_sigmoid_announced_as_a_logit_is_refused():
    with pytest.raises(ValueError, match=r"ends in a sigmoid, .* say outputs=\"probabilities\", or remove the sigmoid"):
        from_teacher(MCDropout(Net("sigmoid"), binary=True))


def test_a_compiled_network_with_one_output_is_copied():
    net = Net()
    student = from_teacher(MCDropout(torch.compile(net, backend="eager"), binary=True))
    p = torch.sigmoid(net.eval()(inputs()).reshape(-1))
    torch.testing.assert_close(student(inputs()).mean[:, 1], p)
