"""Every panel of every picture: named axes, a legend, classes by name; judged on matplotlib's own objects, not pixels."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import opu
from opu import plotting
from opu.distributions.dirichlet import Dirichlet
from opu.distributions.logistic_normal import LogisticNormal
from opu.plotting.merged import merged

RANDOM = np.random.default_rng(0)
CLASSES = ["ale", "bitter", "cider"]


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were written, each by the name of its file."""
    figures = {}

    def keep(drawing, path):
        figures[Path(path).name] = drawing
        drawing.canvas.draw()  # labels and legends are laid out here, and a text that cannot be drawn fails

    for module in ("simplex", "scores", "calibration", "fidelity"):
        monkeypatch.setattr(f"opu.plotting.{module}.finish", keep)
    return figures


def panels(drawing):
    """Axes that are shown, and not those within others."""
    return [axes for axes in drawing.axes if axes.axison]


def labels(axes):
    if axes.name == "ternary":
        return [axes.get_tlabel(), axes.get_llabel(), axes.get_rlabel()]
    return [axes.get_xlabel(), axes.get_ylabel()]


def words(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def check(drawing, number):
    shown = panels(drawing)
    assert len(shown) == number
    for axes in shown:
        assert all(labels(axes)), axes.get_title()
        assert axes.get_legend() is not None, axes.get_title()
        assert all(words(axes))
        assert not any(word.startswith("_") for word in words(axes))


def teacher_of(num_classes, scale=1.0):
    weights = scale * torch.randn(60, 4, num_classes)
    return lambda x, count: (x.reshape(len(x), -1)[:, :4] @ weights[:count]).log_softmax(-1)


def student_of(num_classes, family="dirichlet"):
    return opu.students.mlp(4, num_classes, (8,), family=family)


FAMILIES = ["dirichlet", "logistic_normal"]


@pytest.mark.parametrize("family", FAMILIES)
def test_inputs(drawn, family):
    chosen = {"sure": torch.zeros(1, 2, 2), "torn": torch.ones(1, 2, 2)}
    plotting.draw_inputs(Path("a.png"), chosen, teacher_of(3), student_of(3, family), CLASSES)
    check(drawn["a.png"], 2)
    for axes in panels(drawn["a.png"]):
        assert set(labels(axes)) == set(CLASSES)
        assert any("particles of the teacher" in word for word in words(axes))


def simplex(q, particles, **options):
    axes = plotting.figure(3.0, 3.0).add_subplot(projection="ternary")
    plotting.draw_simplex(axes, particles, q, **options)
    axes.figure.canvas.draw()
    return axes


def dots(axes):
    """Places of all dots in pixels, with the size of each."""
    return [
        (axes.transData.transform(np.atleast_2d(each.get_offsets())), float(each.get_sizes()[0]), each)
        for each in axes.collections
        if type(each).__name__ == "PathCollection"
    ]


def test_a_confident_input_shows_its_dot_and_the_corner_enlarged():
    q = Dirichlet(torch.tensor([[0.9995, 0.0003, 0.0002]]), torch.tensor([7.0]))
    axes = simplex(q, torch.tensor([[0.0, -12.0, -12.0]]).log_softmax(-1).expand(50, 3), classes=CLASSES)
    mean = max(dots(axes), key=lambda each: each[1])
    assert not mean[2].get_clip_on()  # at a corner, half of it lies outside of the triangle
    assert tuple(mean[2].get_edgecolor()[0]) == (1.0, 1.0, 1.0, 1.0)
    corner = axes.transAxes.transform((0, 0))
    assert np.linalg.norm(mean[0][0] - corner) < 2
    assert mean[2].get_zorder() > max(each[2].get_zorder() for each in dots(axes) if each[2] is not mean[2])
    (inset,) = axes.child_axes
    assert all(labels(inset))
    assert len(dots(inset)) == 3  # particles, draws from the student, its mean
    assert all(0 <= place <= 1 for place in inset.transAxes.inverted().transform(dots(inset)[-1][0][0]))
    assert words(axes)[-1] == "draws from the student, enlarged"


def test_a_wide_prediction_has_regions_and_no_enlarged_corner():
    q = Dirichlet(torch.tensor([[0.4, 0.3, 0.3]]), torch.tensor([2.0]))
    axes = simplex(q, torch.randn(50, 3).log_softmax(-1))
    assert not axes.child_axes
    assert words(axes) == ["50 particles of the teacher", "student's mean", "student's 50, 80, 95 % regions"]
    assert set(labels(axes)) == {"class 0", "class 1", "class 2"}
    assert "log-precision: 2.0" in axes.get_legend().get_title().get_text()


def logistic_normal(location, spread, rank=1):
    location = torch.tensor([location])
    return LogisticNormal(
        location, torch.full_like(location, spread).log(), 0.5 * spread * torch.randn(*location.shape, rank)
    )


def test_a_wide_logistic_normal_has_regions_too():
    axes = simplex(logistic_normal([0.5, 0.0, 0.2, -1.0], 1.0), torch.randn(50, 4).log_softmax(-1))
    assert not axes.child_axes
    assert words(axes) == ["50 particles of the teacher", "student's mean", "student's 50, 80, 95 % regions"]
    assert any("TriContourSet" in type(each).__name__ for each in axes.collections)
    assert "all other classes" in labels(axes)


def test_a_confident_logistic_normal_shows_the_corner_enlarged():
    q = logistic_normal([9.0, 0.0, 0.0, 0.0, 0.0], 0.7)
    axes = simplex(q, q.log_rsample(50)[:, 0])
    (inset,) = axes.child_axes
    assert len(dots(inset)) == 3
    assert words(axes)[-1] == "draws from the student, enlarged"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_merged_distribution_has_the_mean_and_quantiles_of_draws(family):
    q = logistic_normal([1.0, 0.0, 0.2, -1.0, 0.5], 1.0)
    if family == "dirichlet":
        q = Dirichlet(torch.tensor([[0.4, 0.2, 0.2, 0.1, 0.1]]), torch.tensor([2.0]))
    found, draws = merged(q, 3, 1), q.rsample(200_000)[:, 0]
    three = torch.stack([draws[:, [0, 2, 4]].sum(-1), draws[:, 3], draws[:, 1]], -1).double().numpy()
    np.testing.assert_allclose(found.mean, three.mean(0), atol=0.003)
    levels = [0.1, 0.5, 0.9]
    np.testing.assert_allclose(
        np.quantile(np.exp(found.log_draws), levels, axis=0), np.quantile(three, levels, axis=0), atol=0.02
    )


def test_the_density_of_three_merged_classes_is_that_of_the_logistic_normal():
    q = logistic_normal([0.5, 0.0, -0.3], 1.0, rank=2).to(torch.float64)
    found, points = merged(q, 1, 2), q.log_rsample(500)[:, 0]
    away = found.log_density(points.numpy()) - q.log_prob(points.unsqueeze(1))[:, 0].numpy()
    near = np.abs(away - np.median(away))  # densities are up to a constant
    assert np.quantile(near, 0.5) < 0.1
    assert np.quantile(near, 0.9) < 0.3


def test_more_than_three_classes_share_a_corner():
    q = Dirichlet(torch.tensor([[0.4, 0.3, 0.2, 0.1]]), torch.tensor([2.0]))
    axes = simplex(q, torch.randn(50, 4).log_softmax(-1), corners=(3, 1), classes=["a", "b", "c", "d"])
    assert labels(axes) == ["all other classes", "d", "b"]


def test_names_of_classes_are_shortened_and_never_mathematics():
    q = Dirichlet(torch.tensor([[0.4, 0.3, 0.3]]), torch.tensor([2.0]))
    names = ["$\\alpha", "from $10 to $20", "a name that goes on and on"]
    axes = simplex(q, torch.randn(50, 3).log_softmax(-1), corners=(0, 1), classes=names)
    assert labels(axes) == ["a name that goe…", r"\$\alpha", r"from \$10 to \$20"]
    with pytest.raises(ValueError, match="a name for each of the 3 classes; got 2"):
        simplex(q, torch.randn(50, 3).log_softmax(-1), classes=["a", "b"])


def scores(number=200):
    def each(shift):
        return {"novelty": RANDOM.random(number) + shift, "predictive_entropy": RANDOM.random(number) + shift}

    return {
        name: {"student": each(s), "teacher": each(s)} for name, s in (("test", 0), ("noise", 1), ("held_out", 0.5))
    }


def test_scores_and_curves(drawn):
    found = scores()
    plotting.draw_histograms(Path("h.png"), found)
    check(drawn["h.png"], 2)
    area = {"novelty": {"auroc": 99.0}, "predictive_entropy": {"auroc": 98.0}}
    metrics = {"ood": {name: {"student": area, "teacher": area} for name in ("noise", "held_out")}}
    plotting.draw_roc(Path("r.png"), metrics, found)
    check(drawn["r.png"], 2)
    for axes in panels(drawn["r.png"]):
        assert words(axes) == ["teacher's entropy E: 98.0", "student's novelty N: 99.0", "chance: 50.0"]


@pytest.mark.parametrize("calibrated", [True, False])
def test_calibration(drawn, calibrated):
    probabilities = RANDOM.dirichlet([1, 1, 1], 80)
    p_values = RANDOM.random(80) if calibrated else np.full(80, np.nan)
    plotting.draw_calibration(Path("c.png"), probabilities, RANDOM.integers(0, 3, 80), p_values)
    check(drawn["c.png"], 2)
    left, right = panels(drawn["c.png"])
    assert words(left) == ["perfect calibration", "student"]
    assert words(right) == (["held-out rows"] if calibrated else []) + ["calibrated (uniform)"]


@pytest.mark.parametrize("num_classes", [2, 3, 5])
@pytest.mark.parametrize(("labelled", "family"), [(True, "dirichlet"), (False, "dirichlet"), (True, "logistic_normal")])
def test_fidelity(drawn, num_classes, labelled, family):
    x, teacher, student = torch.randn(20, 4), teacher_of(num_classes), student_of(num_classes, family)
    truth = torch.arange(20) % num_classes if labelled else None
    found = opu.fidelity.report(student, teacher, x, labels=truth, num_particles=40)
    names = [f"name {index}" for index in range(num_classes)]
    plotting.draw_fidelity(Path("f.png"), found, student, x, teacher, names)
    check(drawn["f.png"], 8)
    for axes in panels(drawn["f.png"])[4:]:
        assert any("name " in label for label in labels(axes))
        assert axes.get_title().startswith("input ")
    assert "perfect calibration" in words(panels(drawn["f.png"])[2])
    coverage = panels(drawn["f.png"])[3]
    assert set(words(coverage)) == {
        "student",
        "most likely Dirichlet",
        "nearest Dirichlet",
        "logistic-normal",
        "level: 90 %",
    }
    student_line = next(line for line in coverage.lines if line.get_label() == "student")
    np.testing.assert_allclose(student_line.get_xdata(), range(1, 11))
    np.testing.assert_allclose(student_line.get_ydata(), found.summary["coverage"]["by_decile"]["predicted"])


def test_coverage_without_families_is_the_students_alone(drawn):
    x, student = torch.randn(4, 4), student_of(3)
    found = opu.fidelity.report(student, lambda x, _: torch.zeros(30, len(x), 3).log_softmax(-1), x, num_particles=30)
    plotting.draw_fidelity(Path("f.png"), found, student, x, lambda x, _: torch.zeros(30, len(x), 3).log_softmax(-1))
    assert words(panels(drawn["f.png"])[3]) == ["student", "level: 90 %"]


@pytest.mark.parametrize("family", FAMILIES)
def test_an_interval_names_its_class(family):
    axes = plotting.figure(3.0, 3.0).add_subplot()
    q = Dirichlet(torch.tensor([[0.4, 0.6]]), torch.tensor([2.0]))
    if family == "logistic_normal":
        q = logistic_normal([0.4, -0.4], 1.0)
    plotting.draw_interval(axes, torch.randn(50, 2).log_softmax(-1), q, classes=["no", "yes"])
    assert labels(axes) == ["probability of yes", "density"]
    assert words(axes) == ["50 particles of the teacher", "student's density", "student's mean"]


@pytest.mark.parametrize("family", FAMILIES)
def test_pictures_draw_nothing_random_from_the_users_generator(family):
    q = Dirichlet(torch.tensor([[0.4, 0.3, 0.3]]), torch.tensor([2.0]))
    if family == "logistic_normal":
        q = logistic_normal([0.4, 0.3, 0.3], 1.0)
    particles, before = torch.randn(50, 3).log_softmax(-1), torch.get_rng_state()
    simplex(q, particles)
    assert torch.equal(before, torch.get_rng_state())


def test_missing_drawing_packages_are_named_with_their_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpltern", None)
    assert plotting.missing().endswith('pip install "one-pass-uncertainty[plot]".')
    with pytest.raises(ImportError, match="mpltern"):
        plotting.figure(1.0, 1.0)
