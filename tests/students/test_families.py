"""Families: every builder makes both, a saved student comes back, and what cannot be is refused in a sentence."""

import pytest
import torch
from torch import nn

import opu
from opu.distributions import Dirichlet, LogisticNormal
from opu.distributions.normal_rule import MOST_DIMENSIONS
from opu.students import Student, binary_mlp, from_backbone, from_teacher, lenet, mlp
from opu.students.families import DirichletFamily, LogisticNormalFamily, default_rank, parse_family
from opu.teachers import MCDropout

RECIPE = opu.Recipe(steps=6, batch_size=16, num_particles=4)


class Own(nn.Module):
    """A network of a user's own class."""

    def __init__(self):
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(8, 12), nn.Dropout(0.4), nn.Linear(12, 5)

    def forward(self, x):
        return self.last(self.drop(torch.tanh(self.first(x))))


def plain():
    return nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Dropout(0.4), nn.Linear(12, 5))


BUILDERS = {
    "mlp": lambda **options: mlp(8, 5, (12,), **options),
    "mlp, shared": lambda **options: mlp(8, 5, (12,), shared_trunk=True, **options),
    "binary_mlp": lambda **options: binary_mlp(8, 5, (12,), **options),
    "from_teacher": lambda **options: from_teacher(MCDropout(plain()), **options),
    "from_teacher, own class": lambda **options: from_teacher(MCDropout(Own()), **options),
    "from_teacher, shared": lambda **options: from_teacher(MCDropout(Own()), shared_trunk=True, **options),
    "from_backbone": lambda **options: from_backbone(nn.Sequential(nn.Linear(8, 12), nn.ReLU()), 12, 5, **options),
}
builders = pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)


@builders
@pytest.mark.parametrize(
    ("family", "kind"),
    [("dirichlet", Dirichlet), ("logistic_normal", LogisticNormal), ("logistic_normal(1)", LogisticNormal)],
)
def test_every_student_predicts_distils_and_comes_back(build, family, kind, tmp_path):
    student, x = build(family=family), torch.randn(200, 8)
    assert isinstance(student(x), kind)
    opu.distill(MCDropout(plain()), student, x, recipe=RECIPE, progress=False)
    student.save(tmp_path / "student")
    again = opu.load(tmp_path / "student")
    assert str(again.family) == str(student.family)
    ours, theirs = student.predict(x), again.predict(x)
    assert (ours.probabilities == theirs.probabilities).all()
    assert all((ours.scores[name] == theirs.scores[name]).all() for name in ours.scores)
    assert (ours.novelty_p_value == theirs.novelty_p_value).all()
    low, high = theirs.interval()
    assert ((low <= high) & (low >= 0) & (high <= 1)).all()


def test_images_are_predicted():
    student = lenet(4, (1, 16, 16), family="logistic_normal")
    assert student(torch.randn(3, 1, 16, 16)).factors.shape == (3, 4, 2)


def test_the_parameters_are_the_outputs_of_the_networks():
    student, x = mlp(3, 4, (6,), family="logistic_normal(2)"), torch.randn(7, 3)
    q, logits, z = student(x), student.mean_net(x), student.precision_net(x)
    assert (q.location == logits).all()
    assert (q.log_scale == z[:, :4]).all()
    assert (q.factors == z[:, 4:].reshape(7, 4, 2)).all()


def test_outputs_that_run_away_stay_finite():
    family = LogisticNormalFamily(1)
    q = family.distribution(torch.zeros(2, 3), family.parameters(torch.tensor([[1e30] * 6, [-1e30] * 6])))
    assert all(values.isfinite().all() for values in opu.measures.all_measures(q).values())
    assert all(end.isfinite().all() for end in q.interval())


@pytest.mark.parametrize(("num_classes", "rank"), [(2, 0), (3, 1), (5, 3), (6, 4), (1000, 4)])
def test_the_rank_is_four_and_less_for_few_classes(num_classes, rank):
    assert default_rank(num_classes) == rank
    assert parse_family("logistic_normal", None, num_classes) == LogisticNormalFamily(rank)
    assert mlp(3, num_classes, (4,), family="logistic_normal").precision_net[-1].out_features == num_classes * (
        1 + rank
    )


def test_a_dirichlet_is_the_default_and_keeps_its_link():
    assert mlp(3, 4).family == DirichletFamily()
    assert str(mlp(3, 4, link="sigmoid(-1, 2)").link) == "sigmoid(-1.0, 2.0)"
    assert Student(nn.Linear(3, 4), nn.Linear(3, 1)).family_name() == "dirichlet"


def test_mistakes_are_told():
    with pytest.raises(
        ValueError, match=r"a family is dirichlet, logistic_normal or logistic_normal\(rank\); got 'beta'"
    ):
        mlp(3, 4, family="beta")
    with pytest.raises(ValueError, match="a link is for the log-precision of a Dirichlet; logistic_normal has none"):
        mlp(3, 4, family="logistic_normal", link="exp")
    with pytest.raises(ValueError, match="from 0 to 64; got 65"):
        mlp(3, 4, family="logistic_normal(65)")
    with pytest.raises(
        ValueError, match=r"at most 21,201 classes and factors together; got 21,198 classes and 4 factors"
    ):
        mlp(1, 21_198, (1,), family="logistic_normal")
    with pytest.raises(ValueError, match=r"at most 21,201 classes .* Use family='dirichlet'"):
        mlp(1, 21_202, (1,), family=LogisticNormalFamily(0))
    student = mlp(3, 4, family="logistic_normal")
    with pytest.raises(ValueError, match="this student predicts logistic_normal"):
        student.fit_bounds(lambda x, n: torch.randn(n, len(x), 4).log_softmax(-1), torch.randn(20, 3))
    with pytest.raises(ValueError, match="only a Dirichlet has a precision to start at"):
        student.start_precision_at(3.0)


def test_as_many_classes_as_there_are_dimensions_are_predicted():
    student = mlp(1, MOST_DIMENSIONS, (1,), family="logistic_normal(0)")
    assert student.predict(torch.zeros(1, 1)).probabilities.sum() == pytest.approx(1)


def test_a_file_with_more_classes_than_there_are_dimensions_is_refused(tmp_path, monkeypatch):
    mlp(1, 9, (1,), family="logistic_normal(2)").save(tmp_path)
    monkeypatch.setattr("opu.students.families.MOST_DIMENSIONS", 10)
    with pytest.raises(ValueError, match="at most 10 classes and factors together; got 9 classes and 2 factors"):
        opu.load(tmp_path)


def test_the_objective_by_default_is_that_of_the_family(tmp_path):
    x = torch.randn(64, 8)
    for family, words in (
        ("dirichlet", "0.2*clipped_kl + 10*mmd"),
        ("logistic_normal", "0.2*kl + cross_entropy + 10*mmd"),
    ):
        student = mlp(8, 5, (12,), family=family)
        opu.distill(MCDropout(plain()), student, x, recipe=RECIPE, out=tmp_path / family, progress=False)
        assert words in (tmp_path / family / "config.json").read_text()


def test_a_run_is_not_resumed_with_another_family(tmp_path):
    x, teacher = torch.randn(64, 8), MCDropout(plain())
    opu.distill(teacher, mlp(8, 5, (12,)), x, recipe=RECIPE, out=tmp_path / "run", progress=False)
    other = mlp(8, 5, (12,), family="logistic_normal")
    with pytest.raises(ValueError, match="resumed with"):
        opu.distill(teacher, other, x, recipe=RECIPE, out=tmp_path / "run", resume=True, progress=False)


def test_a_binary_teacher_has_a_student_of_either_family():
    teacher = MCDropout(nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Dropout(0.4), nn.Linear(12, 1)), binary=True)
    student = from_teacher(teacher, family="logistic_normal")
    opu.distill(teacher, student, torch.randn(64, 8), recipe=RECIPE, progress=False)
    assert student.predict(torch.randn(3, 8)).probabilities.shape == (3, 2)
