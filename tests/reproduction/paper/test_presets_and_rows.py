"""Networks, presets and rows of the paper's tables: known sizes and formulas."""

import math

import pytest
import torch
from torch import nn

import opu
from opu.objectives import CriticEMD, ForwardKL, SampledMMD, Sinkhorn, default
from reproduction.paper import classifiers, numbers, rows
from reproduction.paper.presets import PRESETS, Clamped


def test_networks_have_the_paper_s_sizes():
    def count(net):
        return sum(w.numel() for w in net.parameters())

    assert count(classifiers.mlp(10)) == 785 * 400 + 401 * 400 + 401 * 10
    assert count(classifiers.lenet(47)) == 26 * 20 + 501 * 50 + 801 * 500 + 501 * 47
    for net in (classifiers.mlp(10, dropout=0.5), classifiers.lenet(10, dropout=0.5), classifiers.vgg(10)):
        assert net(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


@pytest.mark.parametrize(
    ("net", "student"),
    [
        (classifiers.mlp(10, dropout=0.5), opu.students.mlp(784, 10)),
        (classifiers.lenet(47, dropout=0.5), opu.students.lenet(47)),
    ],
)
def test_students_start_from_their_teachers(net, student):
    teacher = opu.teachers.MCDropout(net)
    student.start_mean_from(teacher)
    x = torch.rand(3, 1, 28, 28)
    torch.testing.assert_close(student(x).mean, net.eval()(x).softmax(-1))


def test_training_separates_what_can_be_separated():
    x = torch.cat([torch.randn(300, 1, 28, 28) + 0.3, torch.randn(300, 1, 28, 28) - 0.3])
    labels = torch.arange(2).repeat_interleave(300)
    net = classifiers.mlp(2, (16,))
    classifiers.train(net, x, labels, lambda a, b: nn.functional.cross_entropy(net(a), b), epochs=5, batch_size=50)
    assert not net.training
    assert float((net(x).argmax(-1) == labels).float().mean()) > 0.98


def test_the_authors_kernel_is_their_formula():
    x, y = torch.rand(2, 1, 1, 3, dtype=torch.float64).softmax(-1)
    inner, distance = float((x * y).sum()), float((x - y).square().sum())
    of = {name: PRESETS["authors"].objective("mmd", name).kernel for name in ("mc_dropout", "sgld")}
    narrow = math.exp(-1e5 * distance)
    dropout = narrow + 0.5 * (inner + 1) ** 3 + 0.5 * (inner + 1) ** 4
    assert float(of["mc_dropout"].settled(x).gram(x, y)) == pytest.approx(dropout)
    assert float(of["sgld"].settled(x).gram(x, y)) == pytest.approx(narrow + 1e-2 * inner**3 + 1e-3 * inner**4)
    near = (x + 1e-3 * torch.tensor([1.0, -1.0, 0.0])).double()
    assert float(of["sgld"].settled(x).gram(x, near)) > math.exp(-1e5 * 2e-6)


def test_each_preset_means_its_own_divergences():
    assert isinstance(PRESETS["paper"].objective("kl", "sgld"), ForwardKL)
    assert isinstance(PRESETS["paper"].objective("emd", "sgld"), CriticEMD)
    assert isinstance(PRESETS["authors"].objective("emd", "sgld"), Sinkhorn)
    assert isinstance(PRESETS["paper"].objective("mmd", "sgld"), SampledMMD)


def test_transport_has_particles_epochs_and_a_rate_of_its_own():
    emd, mmd = (PRESETS["paper-sgd"].recipe_for(divergence, "sgld") for divergence in ("emd", "mmd"))
    assert (emd.num_particles, emd.epochs, emd.learning_rate) == (32, 5, 1e-1)
    assert (mmd.num_particles, mmd.epochs, mmd.learning_rate) == (64, 20, 1e-2)


def test_clamped_particles_stay_on_the_simplex_and_off_its_corners():
    corner = torch.tensor([[[0.0, -30.0, -40.0]]]).log_softmax(-1)
    clamped = Clamped(lambda x, s: corner.expand(s, 1, 3), 1e-3)(torch.zeros(1, 1), 4)
    assert clamped.shape == (4, 1, 3)
    torch.testing.assert_close(clamped.exp().sum(-1), torch.ones(4, 1))
    torch.testing.assert_close(clamped.exp()[0, 0, 1:], torch.full((2,), 1e-3), rtol=3e-3, atol=0.0)


def test_kl_sees_ten_times_more_of_the_tails():
    def teacher(x, num_particles):
        return torch.tensor([[[0.0, -40.0]]]).log_softmax(-1)

    lowest = [float(PRESETS["authors"].seen(teacher, d)(torch.zeros(1, 1), 1).exp().min()) for d in ("kl", "mmd")]
    assert lowest == pytest.approx([1e-5, 1e-4], rel=1e-3)
    assert PRESETS["paper"].seen(teacher, "kl") is teacher


def test_gradient_descent_is_plain():
    weight = nn.Parameter(torch.ones(3))
    optimizer = PRESETS["authors"].recipe.make_optimizer([weight])
    weight.grad = torch.full((3,), 2.0)
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.full((3,), 1 - 0.02))


@pytest.mark.parametrize("table", rows.TABLES)
def test_names_of_rows_are_unique(table):
    names = [row.name for row in rows.TABLES[table]]
    assert len(set(names)) == len(names)


def test_rows_with_held_out_classes_are_some_of_the_whole_table_s():
    assert len(rows.TABLES["mnist-held-out"]) == 12
    assert len(rows.TABLES["emnist-held-out"]) == 5
    for table in ("mnist", "emnist"):
        assert set(rows.TABLES[f"{table}{rows.HELD_OUT}"]) < set(rows.TABLES[table])


@pytest.mark.parametrize("table", ["mnist", "emnist"])
def test_every_robust_student_stands_beside_its_teacher(table):
    robust = rows.TABLES[f"{table}{rows.ROBUST_TABLE}"]
    students = {row.teacher for row in robust if row.name.endswith("(robust)")}
    assert students == {row.teacher for row in robust if row.kind == "pointwise"}
    assert "ensemble" in students


@pytest.mark.parametrize("table", numbers.TABLES)
def test_every_row_of_the_paper_is_there(table):
    assert numbers.TABLES[table].keys() == {row.in_paper for row in rows.TABLES[table]} - {None}


def test_rows_are_chosen_by_parts_of_their_names():
    assert [row.name for row in rows.select("emnist", ["robust"])] == ["OPU-MCDP (robust)"]
    assert rows.select("mnist", None) == rows.MNIST
    with pytest.raises(ValueError, match="no row of mnist has 'nonsense'"):
        rows.select("mnist", ["robust", "nonsense"])


@pytest.mark.parametrize(("num_classes", "weight"), [(8, "0.125"), (10, "0.1"), (47, "0.0213")])
def test_our_recipe_is_the_librarys_default_for_the_classes_that_there_are(num_classes, weight):
    (row,) = rows.select("mnist", ["OPU-MCDP (robust)"])
    assert row.for_classes(num_classes).divergence == f"{weight}*clipped_kl + 10*mmd" == default(num_classes)
    (other,) = rows.select("mnist", ["OPU-MCDP-MMD (paper-sgd)"])
    assert other.for_classes(num_classes) == other
