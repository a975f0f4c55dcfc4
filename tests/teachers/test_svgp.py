"""SVGP against the equations that its optimum satisfies, and the laws of its particles."""

import itertools
import math
import sys

import numpy as np
import pytest
import torch

from opu.files import write_state
from opu.teachers import SVGP, SVGPSettings, svgp
from opu.teachers.gp_kernel import conditional
from opu.teachers.gp_posterior import WhitenedGaussian
from opu.teachers.svgp import _batches

SETTINGS = SVGPSettings(num_inducing=8, tolerance=1e-6, window=25, learning_rate=0.02)


def problem(num_rows=100):
    """Noisy labels that go up and down, so that the data have a lengthscale and a variance."""
    x = 6 * torch.rand(num_rows, 1) - 3
    return x, torch.bernoulli((2 * (2 * x[:, 0]).sin()).sigmoid()).long()


@pytest.fixture(scope="module")
def fitted():
    torch.manual_seed(1)
    x, labels = problem()
    return svgp(x, labels, SETTINGS), x, labels


def by_hand(num_functions=1, num_inducing=4, **options):
    """A process with any numbers, for what needs no training."""
    inducing = torch.randn(num_inducing, 2).double()
    mean = torch.randn(num_inducing, num_functions).double()
    root = torch.randn(num_functions, num_inducing, num_inducing).double().tril()
    return SVGP(inducing, mean, root, torch.tensor([0.1, 0.9]).double(), torch.zeros(3).double(), True, **options)


def test_the_bound_rises_and_ends_where_it_stands_still(fitted):
    teacher, _, _ = fitted
    assert teacher.converged
    averages = teacher.elbo.reshape(-1, SETTINGS.window).mean(1)
    # The learning rate falls, and at last training ends, after a window whose average is not above the best before it.
    stalled = averages[1:] < averages.cummax(0).values[:-1] + SETTINGS.tolerance
    assert int(stalled.sum()) == SETTINGS.num_falls + 1
    assert bool(stalled[-1])
    assert float(averages[-1]) > float(teacher.elbo[0]) + 1e-3
    assert float(averages[-1] - averages[-2]) < 1e-6
    assert float(averages.max() - averages[-1]) < 1e-5
    assert float(averages[-1]) < 0


def test_the_optimum_is_the_one_that_gaussian_variational_inference_must_have(fitted):
    # Where the bound is stationary, the mean is A' E[y - p] and the covariance (I + A' E[p (1 - p)] A)^-1, averages
    # being over the process's own marginals.
    teacher, x, labels = fitted
    features, _ = conditional(x.double(), teacher.inducing, teacher.hyper)
    mean, variance = teacher.marginals(x)
    points, weights = (torch.tensor(part) for part in np.polynomial.hermite_e.hermegauss(80))
    p = (mean + variance.sqrt() * points).sigmoid()
    weights = weights / weights.sum()
    torch.testing.assert_close(
        features.T @ (labels - p @ weights),
        teacher.mean.squeeze(1),
        rtol=0,
        atol=2e-3,
    )
    precision = torch.eye(8) + features.T @ ((p * (1 - p)) @ weights * features.T).T
    covariance = teacher.root[0] @ teacher.root[0].T
    torch.testing.assert_close(covariance, torch.linalg.inv(precision), rtol=0, atol=1e-4)


def test_the_fit_is_good(fitted):
    teacher, x, labels = fitted
    probabilities = teacher(x, 300).exp().mean(0)
    assert float((probabilities.argmax(-1) == labels).double().mean()) > 0.65


def test_marginals_are_those_that_gpytorch_computes():
    from opu.teachers.svgp_model import SparseGP

    for num_functions, hyper in ((1, [0.2, 0.5]), (3, [0.2, -0.3, 0.5])):
        mean, root = torch.randn(5, num_functions).double(), torch.randn(num_functions, 5, 5).double().tril()
        start = WhitenedGaussian(torch.randn(5, 2).double(), mean, root, torch.tensor(hyper).double())
        model = SparseGP(start)
        model(torch.randn(3, 2).double())
        for mine, theirs in zip(start, model.state(), strict=True):
            torch.testing.assert_close(theirs, mine, rtol=1e-6, atol=1e-9)
        teacher = SVGP(*start, torch.zeros(1).double(), True)
        x = torch.randn(7, 2).double()
        mean, variance = teacher.marginals(x)
        theirs = model.eval()(x)
        torch.testing.assert_close(mean, theirs.mean.T.detach(), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(variance, theirs.variance.T.detach(), rtol=1e-4, atol=1e-4)


def test_the_mean_probability_is_the_quadrature():
    teacher, x, count = by_hand(), torch.randn(4, 2), 20_000
    mean, variance = teacher.marginals(x)
    points, weights = (torch.tensor(part) for part in np.polynomial.hermite_e.hermegauss(60))
    expected = (mean + variance.sqrt() * points).sigmoid() @ weights / weights.sum()
    probabilities = teacher(x, count)[..., 1].double().exp()
    assert ((probabilities.mean(0) - expected).abs() < 5 * probabilities.std(0) / math.sqrt(count)).all()


def test_far_from_all_data_the_marginals_are_the_priors():
    mean, variance = by_hand(3).marginals(torch.full((2, 2), 1e3))
    torch.testing.assert_close(mean, torch.zeros(2, 3).double())
    torch.testing.assert_close(variance, torch.full((2, 3), math.exp(0.9)).double())


def test_several_classes_are_learnt_on_the_simplex():
    labels = torch.arange(60) % 3
    x = torch.randn(60, 2) + 3 * torch.stack([labels == 0, labels == 1], 1)
    teacher = svgp(x, labels, SVGPSettings(num_inducing=6, batch_size=32, num_falls=0, window=30, tolerance=1e-2))
    particles = teacher(x, 50)
    assert particles.shape == (50, 60, 3)
    assert particles.dtype == torch.float32
    torch.testing.assert_close(particles.exp().sum(-1), torch.ones(50, 60), rtol=0, atol=1e-5)
    assert float((particles.exp().mean(0).argmax(-1) == labels).double().mean()) > 0.85


def test_units_do_not_matter_and_flipped_labels_flip_the_marginals(fitted):
    teacher, x, labels = fitted
    mean, variance = teacher.marginals(x)
    torch.manual_seed(1)
    problem()  # so that the same random numbers follow
    scaled = svgp(1000 * x, 1 - labels, SETTINGS)
    other_mean, other_variance = scaled.marginals(1000 * x)
    torch.testing.assert_close(other_mean, -mean, rtol=0, atol=1e-3)
    torch.testing.assert_close(other_variance, variance, rtol=1e-3, atol=1e-3)


def test_a_small_memory_budget_gives_the_same_marginals():
    teacher, x = by_hand(2), torch.randn(9, 2)
    small = SVGP(teacher.inducing, teacher.mean, teacher.root, teacher.hyper, teacher.elbo, True, memory_budget=200)
    torch.testing.assert_close(small.marginals(x), teacher.marginals(x))


def test_the_process_is_kept_in_one_file_and_comes_back(tmp_path):
    teacher, x = by_hand(3), torch.randn(5, 2)
    teacher.save(tmp_path / "gp.safetensors")
    again = SVGP.load(tmp_path / "gp.safetensors")
    assert again.converged
    assert torch.equal(again.elbo, teacher.elbo)
    torch.manual_seed(3)
    expected = teacher(x, 40)
    torch.manual_seed(3)
    assert torch.equal(again(x, 40), expected)


def test_files_that_hold_something_else_are_refused(tmp_path):
    write_state(tmp_path / "other", {"kind": "gp_samples"})
    with pytest.raises(ValueError, match="kind 'svgp'; got 'gp_samples'"):
        SVGP.load(tmp_path / "other")


def test_training_that_is_cut_short_says_so():
    x, labels = problem(20)
    with pytest.warns(UserWarning, match="raise max_steps"):
        teacher = svgp(x, labels, SVGPSettings(num_inducing=3, max_steps=5))
    assert not teacher.converged
    assert len(teacher.elbo) == 5


def test_an_epoch_has_every_row_once_in_batches_of_about_one_size():
    batches = _batches(10, 4)
    for _ in range(2):
        epoch = list(itertools.islice(batches, 3))
        assert [len(rows) for rows in epoch] == [4, 3, 3]
        assert sorted(torch.cat(epoch).tolist()) == list(range(10))
    assert next(_batches(3, 4)).tolist() == [0, 1, 2]


def test_without_gpytorch_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gpytorch", None)
    monkeypatch.delitem(sys.modules, "opu.teachers.svgp_model", raising=False)
    with pytest.raises(ImportError, match=r'pip install "one-pass-uncertainty\[gp\]"'):
        svgp(*problem(10))
    # What is fitted already needs no extra.
    assert by_hand()(torch.zeros(1, 2), 2).shape == (2, 1, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inducing_fraction": 0.0}, "above 0 and at most 1"),
        ({"num_inducing": 0}, "num_inducing must be at least 1"),
        ({"batch_size": 0}, "at least 1"),
        ({"window": 0}, "at least 1"),
        ({"max_steps": 0}, "at least 1"),
        ({"num_falls": -1}, "num_falls must be at least 0"),
        ({"learning_rate": 0.0}, "must be positive"),
        ({"tolerance": 0.0}, "must be positive"),
    ],
)
def test_settings_that_make_no_training_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        SVGPSettings(**options)


def test_inputs_are_checked():
    with pytest.raises(ValueError, match="num_particles must be at least 1; got 0"):
        by_hand()(torch.zeros(1, 2), 0)
    with pytest.raises(ValueError, match="fitted to 2 features; got inputs with 5"):
        by_hand()(torch.zeros(1, 5), 3)
    with pytest.raises(ValueError, match="one class for each of the 3 inputs"):
        svgp(torch.zeros(3, 2), torch.tensor([0, 1]))
