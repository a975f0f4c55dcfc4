"""Students: a distribution for every input, two networks or one trunk, started from the teacher's weights."""

import copy

import pytest
import torch
from torch import nn

from opu.distributions.dirichlet import Dirichlet
from opu.students import Softsign, Student, from_backbone, lenet, mlp
from opu.teachers import Ensemble, MCDropout, WeightSamples


def backbone() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU())  # (B, 1, 5, 5) -> (B, 2, 3, 3)


BUILDERS = {
    "mlp": (lambda: mlp(4, 3, (6, 5)), (4,)),
    "mlp on images": (lambda: mlp(12, 3, (6,)), (3, 2, 2)),
    "mlp, no hidden layer": (lambda: mlp(4, 3, ()), (4,)),
    "mlp, shared": (lambda: mlp(4, 3, (6, 5), shared_trunk=True), (4,)),
    "mlp, shared, no hidden layer": (lambda: mlp(4, 3, (), shared_trunk=True), (4,)),
    "lenet": (lambda: lenet(3, (1, 16, 16), (2, 3), 7), (1, 16, 16)),
    "lenet, odd sizes": (lambda: lenet(3, (3, 17, 23), (2, 3), 7), (3, 17, 23)),
    "lenet, shared": (lambda: lenet(3, (1, 20, 20), (2, 3), 7, shared_trunk=True), (1, 20, 20)),
    "backbone": (lambda: from_backbone(backbone(), 18, 3), (1, 5, 5)),
    "backbone, two networks": (lambda: from_backbone(backbone(), 18, 3, shared_trunk=False), (1, 5, 5)),
}
SHARED = ("mlp, shared", "mlp, shared, no hidden layer", "lenet, shared", "backbone")
every = pytest.mark.parametrize("name", BUILDERS)


def build(name: str) -> tuple[Student, torch.Tensor]:
    make, shape = BUILDERS[name]
    return make().eval(), torch.randn(5, *shape)


@every
def test_one_dirichlet_for_each_row(name):
    student, x = build(name)
    q = student(x)
    assert isinstance(q, Dirichlet)
    assert q.mean.shape == (5, 3)
    assert q.log_precision.shape == (5,)
    torch.testing.assert_close(q.mean.sum(-1), torch.ones(5))
    assert bool((q.mean > 0).all())
    assert student(x[:1]).log_precision.shape == (1,)


@every
def test_rows_do_not_depend_on_their_company(name):
    student, x = build(name)
    q, alone = student(x), student(x[3:4])
    torch.testing.assert_close(alone.mean[0], q.mean[3])
    torch.testing.assert_close(alone.log_precision[0], q.log_precision[3])


@every
@pytest.mark.parametrize("link", ["exp", "softplus", "sigmoid(-1, 2)"])
def test_the_prediction_is_the_softmax_and_the_link_of_the_networks(name, link):
    make, shape = BUILDERS[name]
    student = make().eval()
    student.family = type(student)(nn.Identity(), nn.Identity(), link=link).family
    x = torch.randn(5, *shape)
    features = x if student.trunk is None else student.trunk(x).flatten(1)
    q = student(x)
    torch.testing.assert_close(q.mean, student.mean_net(features).softmax(-1))
    torch.testing.assert_close(q.log_precision, student.link(student.precision_net(features)[:, 0]))


@every
def test_the_default_link_keeps_the_log_precision_between_its_bounds(name):
    student, x = build(name)
    assert student.link == Softsign(-2.0, 7.0)
    for scale in (1.0, 1e3, 1e6):
        g = student(scale * x).log_precision.detach()
        assert float(g.min()) >= -2
        assert float(g.max()) <= 7


@every
def test_parameters_are_apart_or_share_exactly_the_trunk(name):
    student, _ = build(name)
    mean, precision = map(set, student.parameter_groups("alternating"))
    assert mean | precision == set(student.parameters())
    trunk = set() if student.trunk is None else set(student.trunk.parameters())
    assert mean & precision == trunk
    assert (student.trunk is not None) == (name in SHARED)


@every
def test_the_mean_depends_on_its_own_parameters_only_and_so_does_the_precision(name):
    student, x = build(name)
    (everything,) = student.parameter_groups("joint")
    q = student(x)
    values = q.log_mean[:, 0].sum(), q.log_precision.sum()
    for value, own in zip(values, student.parameter_groups("alternating"), strict=True):
        gradients = torch.autograd.grad(value, everything, allow_unused=True, retain_graph=True)
        assert {w for w, g in zip(everything, gradients, strict=True) if g is not None} == set(own)


@every
def test_moving_the_precision_network_leaves_the_mean_bit_for_bit(name):
    student, x = build(name)
    before = student(x)
    with torch.no_grad():
        for w in student.precision_net.parameters():
            w.add_(torch.randn_like(w))
    after = student(x)
    assert torch.equal(after.mean, before.mean)
    assert not torch.equal(after.log_precision, before.log_precision)


@every
def test_half_precision_networks_predict_in_float32(name):
    student, x = build(name)
    with torch.autocast("cpu", torch.bfloat16):
        q = student(x)
    exact = student(x)
    assert q.mean.dtype == q.log_precision.dtype == torch.float32
    torch.testing.assert_close(q.mean, exact.mean, rtol=0, atol=0.03)
    torch.testing.assert_close(q.log_precision, exact.log_precision, rtol=0, atol=0.1)


# --- the paper's architectures ---------------------------------------------------------------------------------------


def shapes(net: nn.Module) -> list[tuple[int, ...]]:
    return [tuple(w.shape) for w in net.parameters() if w.ndim > 1]


def test_the_default_mlp_is_the_papers():
    student = mlp(num_features=784, num_classes=10)
    assert shapes(student.mean_net) == [(400, 784), (400, 400), (10, 400)]
    assert shapes(student.precision_net) == [(400, 784), (400, 400), (1, 400)]


def test_the_default_lenet_has_20_and_50_channels():
    student = lenet(num_classes=10)
    assert shapes(student.mean_net) == [(20, 1, 5, 5), (50, 20, 5, 5), (500, 50 * 4 * 4), (10, 500)]
    assert shapes(student.precision_net) == [(20, 1, 5, 5), (50, 20, 5, 5), (500, 50 * 4 * 4), (1, 500)]


def test_lenet_takes_images_with_or_without_channels_and_rows_of_pixels():
    student, x = lenet(3, (1, 16, 16), (2, 3), 7), torch.rand(4, 1, 16, 16)
    expected = student(x)
    for form in (x[:, 0], x.flatten(1)):
        assert torch.equal(student(form).mean, expected.mean)
        assert torch.equal(student(form).log_precision, expected.log_precision)


def test_a_backbone_is_copied_and_the_callers_own_is_left_alone():
    trunk = backbone()
    before = [w.clone() for w in trunk.parameters()]
    two = from_backbone(trunk, 18, 3, shared_trunk=False)
    for copied in (from_backbone(trunk, 18, 3).trunk, two.mean_net[0], two.precision_net[0]):
        assert all(torch.equal(a, b) for a, b in zip(copied.parameters(), before, strict=True))
        with torch.no_grad():
            next(copied.parameters()).zero_()
    assert all(torch.equal(a, b) for a, b in zip(trunk.parameters(), before, strict=True))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mlp(0, 3), "num_features must be at least 1; got 0"),
        (lambda: mlp(4, 1), "num_classes must be at least 2; got 1"),
        (lambda: lenet(1), "num_classes must be at least 2; got 1"),
        (lambda: lenet(10, (1, 8, 8)), "lenet needs images of at least 16 x 16; got 8 x 8. Use mlp"),
        (lambda: lenet(10, (1, 28, 15)), "got 28 x 15"),
        (lambda: from_backbone(nn.Identity(), -1, 3), "num_features must be at least 1; got -1"),
        (lambda: from_backbone(nn.Identity(), 4, 0), "num_classes must be at least 2; got 0"),
        (lambda: mlp(4, 3, link="tanh"), "a link is exp, softplus, sigmoid"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# --- starting from the teacher ---------------------------------------------------------------------------------------


def dropout_mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 3)
    )


@pytest.mark.parametrize("shared", [False, True])
def test_from_dropout_the_mean_starts_as_the_network_without_dropout(shared):
    net, x = dropout_mlp(), torch.randn(7, 4)
    student = mlp(4, 3, (8, 6), shared_trunk=shared)
    precision = copy.deepcopy(student.precision_net.state_dict())
    assert student.start_mean_from(MCDropout(net)) is student
    torch.testing.assert_close(student(x).mean, net.eval()(x).softmax(-1))
    assert all(torch.equal(w, precision[name]) for name, w in student.precision_net.state_dict().items())


def test_a_lenet_and_a_backbone_with_batch_norm_start_from_their_teachers():
    net = nn.Sequential(
        nn.Conv2d(1, 2, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout2d(0.2),
        nn.Conv2d(2, 3, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )
    net.extend([nn.Flatten(), nn.Linear(3, 7), nn.ReLU(), nn.Dropout(0.5), nn.Linear(7, 3)])
    x = torch.rand(4, 1, 16, 16)
    student = lenet(3, (1, 16, 16), (2, 3), 7).start_mean_from(MCDropout(net))
    torch.testing.assert_close(student(x).mean, net.eval()(x).softmax(-1))

    trunk = backbone()
    trunk[1].running_mean.normal_()
    trunk[1].running_var.uniform_(0.5, 2)
    net = nn.Sequential(trunk, nn.Flatten(), nn.Dropout(0.5), nn.Linear(18, 3))
    x = torch.rand(4, 1, 5, 5)
    student = from_backbone(backbone(), 18, 3).start_mean_from(MCDropout(net)).eval()
    torch.testing.assert_close(student(x).mean, net.eval()(x).softmax(-1))


def test_the_student_does_not_share_memory_with_the_teacher():
    net, x = dropout_mlp(), torch.randn(7, 4)
    student = mlp(4, 3, (8, 6)).start_mean_from(MCDropout(net))
    expected = net.eval()(x).softmax(-1).detach()
    with torch.no_grad():
        for w in net.parameters():
            w.zero_()
    torch.testing.assert_close(student(x).mean, expected)
    assert all(w.requires_grad for w in student.parameters())


def test_from_weight_samples_the_mean_starts_from_the_averaged_weights():
    samples = [copy.deepcopy(dropout_mlp().state_dict()) for _ in range(3)]
    averaged = dropout_mlp().eval()
    averaged.load_state_dict({name: sum(sample[name] for sample in samples) / 3 for name in samples[0]})
    student = mlp(4, 3, (8, 6)).start_mean_from(WeightSamples(dropout_mlp(), samples))
    x = torch.randn(7, 4)
    torch.testing.assert_close(student(x).mean, averaged(x).softmax(-1))


def test_a_teacher_of_other_shapes_is_refused_and_nothing_is_changed():
    student = mlp(4, 3, (8, 7))
    before = copy.deepcopy(student.state_dict())
    with pytest.raises(ValueError, match=r"must have the teacher's weight shapes .*\(6, 8\).* the student .*\(7, 8\)"):
        student.start_mean_from(MCDropout(dropout_mlp()))
    assert all(torch.equal(w, before[name]) for name, w in student.state_dict().items())


def test_a_teacher_without_weights_is_refused():
    with pytest.raises(ValueError, match=r"can start from a teacher over weights .*; function has none"):
        mlp(4, 3, (8, 6)).start_mean_from(lambda x, num_particles: x)


def test_from_an_ensemble_the_mean_starts_from_its_first_member():
    members, x = [dropout_mlp().eval(), dropout_mlp()], torch.randn(5, 4)
    student = mlp(4, 3, (8, 6)).start_mean_from(Ensemble(members))
    torch.testing.assert_close(student(x).mean, members[0](x).softmax(-1))
