"""SGPMC against posteriors that importance sampling finds, and the laws of its particles."""

import math

import numpy as np
import pytest
import torch

from opu.teachers import GPSamples, SGPMCSettings, sgpmc
from opu.teachers.diagnostics import effective_sample_size
from opu.teachers.gp_kernel import conditional, median_distance, rbf
from opu.teachers.sgpmc import GPMixing

X = torch.tensor([[-2.0], [-1.4], [-0.3], [0.1], [0.8], [1.3], [1.9]]).double()
LABELS = torch.tensor([0, 0, 1, 0, 1, 1, 1])
NEW = torch.tensor([[-3.5], [-0.9], [0.5], [2.6]]).double()
HYPER = torch.tensor([math.log(0.8), math.log(6.0)]).double()
GOOD = GPMixing(acceptance=0.8, hyper_acceptance=0.8, logit_ess=400.0, least_ess=100.0, r_hat=1.01)


def prior_draws(hyper, num_draws, num_functions=1):
    """Functions from the prior, at training and new inputs together: (draws, inputs, functions)."""
    both = torch.cat([X, NEW])
    covariance = rbf(both, both, hyper) + 1e-6 * hyper[..., -1].exp()[..., None, None] * torch.eye(len(both))
    return torch.linalg.cholesky(covariance) @ torch.randn(num_draws, len(both), num_functions).double()


def weighted(values, weights):
    """Mean and standard deviation of each column, and the error of the mean."""
    mean = weights @ values
    variance = weights @ (values - mean).square()
    return mean, variance.sqrt(), (weights.square() @ (values - mean).square()).sqrt()


def assert_same_mean_and_spread(draws, values, weights):
    """Within four and a half standard errors, which follow from the effective sample size and the weights."""
    mean, spread, error = weighted(values, weights)
    sizes = torch.from_numpy(effective_sample_size(draws[None].numpy())).clamp(max=len(draws))
    assert float(sizes.min()) > 60
    assert ((draws.mean(0) - mean).abs() < 4.5 * (error + draws.std(0) / sizes.sqrt())).all()
    squares = (draws - mean).square()
    slack = (
        4.5
        * squares.std(0)
        / torch.from_numpy(effective_sample_size(squares[None].numpy())).clamp(max=len(draws)).sqrt()
    )
    assert ((squares.mean(0) - spread.square()).abs() < slack + 0.03 * spread.square()).all()


def latent_draws(teacher, x):
    logs = teacher(x, teacher.num_samples).double()
    return logs[..., 1] - logs[..., 0]


def test_functions_have_the_posterior_when_every_input_is_an_inducing_point():
    teacher = sgpmc(X, LABELS, SGPMCSettings(inducing_fraction=1.0, num_samples=400), hyper=HYPER)
    draws = prior_draws(HYPER, 50_000).squeeze(-1)
    signs = 2 * LABELS - 1
    weights = torch.nn.functional.logsigmoid(signs * draws[:, : len(X)]).sum(1).softmax(0)
    assert_same_mean_and_spread(latent_draws(teacher, torch.cat([X, NEW])), draws, weights)


def test_functions_of_three_classes_have_the_posterior():
    labels = torch.tensor([0, 0, 1, 0, 1, 2, 2])
    teacher = sgpmc(X, labels, SGPMCSettings(inducing_fraction=1.0, num_samples=400), hyper=HYPER)
    draws = prior_draws(HYPER, 50_000, 3).log_softmax(-1)
    weights = draws[:, torch.arange(len(X)), labels].sum(1).softmax(0)
    particles = teacher(torch.cat([X, NEW]), 400).double()
    torch.testing.assert_close(particles.exp().sum(-1), torch.ones(400, 11).double(), rtol=0, atol=1e-6)
    assert_same_mean_and_spread(particles.flatten(1).exp(), draws.flatten(1).exp(), weights)


def test_hyperparameters_and_functions_have_their_joint_posterior():
    settings = SGPMCSettings(inducing_fraction=1.0, num_samples=400, burn_in=60, variance_spread=1.0)
    teacher = sgpmc(X, LABELS, settings)
    centre = torch.tensor([math.log(median_distance(X)), math.log(4.0)]).double()
    hyper = centre + torch.randn(30_000, 2).double()
    draws = prior_draws(hyper, len(hyper)).squeeze(-1)
    signs = 2 * LABELS - 1
    weights = torch.nn.functional.logsigmoid(signs * draws[:, : len(X)]).sum(1).softmax(0)
    assert_same_mean_and_spread(teacher.hyper, hyper, weights)
    everywhere = latent_draws(teacher, torch.cat([X, NEW])).sigmoid()
    assert_same_mean_and_spread(everywhere, draws.sigmoid(), weights)


def problem(num_rows=80, num_features=2):
    x = torch.randn(num_rows, num_features)
    labels = (x[:, 0] + 0.3 * torch.randn(num_rows) > 0).long()
    return x, labels


@pytest.fixture(scope="module")
def fitted():
    torch.manual_seed(1)
    x, labels = problem()
    return sgpmc(x, labels, SGPMCSettings(num_inducing=12, num_samples=120, burn_in=40)), x, labels


def test_the_chain_learns_mixes_and_says_so(fitted):
    teacher, x, labels = fitted
    assert teacher.inducing.shape == (12, 2)
    assert teacher.num_samples == 120
    assert teacher.mixing.logit_ess > 50
    assert teacher.mixing.r_hat < 1.2
    assert 0.6 < teacher.mixing.acceptance < 1.0
    assert 0.6 < teacher.mixing.hyper_acceptance < 1.0
    assert teacher.mixing.complaint(120) is None
    probabilities = teacher(x, 120).exp().mean(0)
    assert float((probabilities.argmax(-1) == labels).double().mean()) > 0.85


def test_particles_are_float32_log_probabilities_chosen_from_the_samples(fitted):
    teacher, x, _ = fitted
    particles = teacher(x[:5], 30)
    assert particles.shape == (30, 5, 2)
    assert particles.dtype == torch.float32
    assert teacher(x[:5], 10_000).shape == (120, 5, 2)


def test_far_from_all_data_particles_return_to_the_prior(fitted):
    teacher, _, _ = fitted
    far = 1e4 + 1e4 * torch.arange(400.0)[:, None].expand(-1, 2)
    standard = latent_draws(teacher, far) / (teacher.hyper[:, -1:] / 2).exp()
    assert float(standard.mean()) == pytest.approx(0.0, abs=5 / math.sqrt(standard.numel()))
    assert float(standard.var()) == pytest.approx(1.0, abs=5 * math.sqrt(2 / standard.numel()))
    quantiles = torch.quantile(standard.flatten(), torch.tensor([0.025, 0.5, 0.975]).double())
    torch.testing.assert_close(quantiles, torch.tensor([-1.96, 0.0, 1.96]).double(), rtol=0, atol=0.05)


def test_flipped_labels_flip_the_prediction(fitted):
    _, x, labels = fitted
    settings = SGPMCSettings(num_inducing=12, num_samples=120, burn_in=40)
    hyper = torch.tensor([0.3, 1.5])
    means, errors = [], []
    for some in (labels, 1 - labels):
        torch.manual_seed(4)  # for the same inducing points
        draws = latent_draws(sgpmc(x, some, settings, hyper=hyper), x)
        means.append(draws.mean(0))
        errors.append(draws.std(0) / torch.from_numpy(effective_sample_size(draws[None].numpy())).clamp(max=120).sqrt())
    assert ((means[0] + means[1]).abs() < 5 * (errors[0] + errors[1])).all()
    assert float(means[0].abs().max()) > 2


def test_the_mean_probability_of_one_sample_is_the_quadrature(fitted):
    teacher, x, _ = fitted
    count = 20_000
    same = GPSamples(
        teacher.inducing, teacher.whitened[:1].expand(count, -1, -1), teacher.hyper[:1].expand(count, -1), GOOD
    )
    features, variance = conditional(x[:3].double() * 3, teacher.inducing, teacher.hyper[0])
    points, weights = (torch.tensor(part) for part in np.polynomial.hermite_e.hermegauss(60))
    latents = features @ teacher.whitened[0] + variance.sqrt() * points
    expected = latents.sigmoid() @ weights / weights.sum()
    probabilities = same(x[:3] * 3, count)[..., 1].double().exp()
    assert ((probabilities.mean(0) - expected).abs() < 5 * probabilities.std(0) / math.sqrt(count)).all()


def test_a_small_memory_budget_gives_the_same_particles(fitted):
    teacher, x, _ = fitted
    particles = []
    for budget in (2**29, 60_000, 1):
        torch.manual_seed(2)
        small = GPSamples(teacher.inducing, teacher.whitened, teacher.hyper, GOOD, memory_budget=budget)
        particles.append(small(x[:7], 20))
    torch.testing.assert_close(particles[1], particles[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(particles[2], particles[0], rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:the chain has mixed poorly")
def test_one_random_state_gives_one_chain():
    x, labels = problem(30)
    chains = []
    for _ in range(2):
        torch.manual_seed(9)
        chains.append(sgpmc(x, labels, SGPMCSettings(num_inducing=4, num_samples=6, burn_in=4)))
    assert torch.equal(chains[0].whitened, chains[1].whitened)
    assert torch.equal(chains[0].hyper, chains[1].hyper)


@pytest.mark.filterwarnings("ignore:the chain has mixed poorly")
def test_a_feature_that_does_not_matter_gets_a_longer_lengthscale():
    x, labels = problem(100)
    teacher = sgpmc(x, labels, SGPMCSettings(num_inducing=12, num_samples=40, burn_in=20, ard=True))
    used, unused, _ = teacher.hyper.mean(0).tolist()
    assert teacher.hyper.shape == (40, 3)
    assert unused > used + 0.3


def test_samples_are_kept_in_one_file_and_come_back(fitted, tmp_path):
    teacher, x, _ = fitted
    teacher.save(tmp_path / "gp.safetensors")
    again = GPSamples.load(tmp_path / "gp.safetensors", memory_budget=10_000)
    assert again.mixing == teacher.mixing
    torch.manual_seed(3)
    expected = teacher(x, 40)
    torch.manual_seed(3)
    torch.testing.assert_close(again(x, 40), expected, rtol=1e-5, atol=1e-6)


def test_files_that_hold_something_else_are_refused(fitted, tmp_path):
    from opu.files import write_state

    write_state(tmp_path / "other", {"kind": "svgp"})
    with pytest.raises(ValueError, match="kind 'gp_samples'; got 'svgp'"):
        GPSamples.load(tmp_path / "other")
    fitted[0].save(tmp_path / "cut")
    (tmp_path / "cut").write_bytes((tmp_path / "cut").read_bytes()[:-9])
    with pytest.raises(ValueError, match="cut short"):
        GPSamples.load(tmp_path / "cut")


def test_other_features_than_in_training_are_refused(fitted):
    with pytest.raises(ValueError, match="fitted to 2 features; got inputs with 3"):
        fitted[0](torch.zeros(4, 3), 5)


def test_a_chain_that_mixes_poorly_says_so_once():
    x, labels = problem(40)
    settings = SGPMCSettings(num_inducing=8, num_samples=30, burn_in=20, target_acceptance=0.02)
    with pytest.warns(UserWarning, match="mixed poorly") as caught:
        sgpmc(x, labels, settings)
    assert len(caught) == 1


@pytest.mark.parametrize(
    "change",
    [{"acceptance": 0.1}, {"hyper_acceptance": 0.1}, {"logit_ess": 20.0}, {"least_ess": 9.0}, {"r_hat": 1.5}],
    ids=str,
)
def test_each_sign_of_poor_mixing_is_enough(change):
    values = {**GOOD.__dict__, **change}
    assert "take a longer burn_in" in GPMixing(**values).complaint(500)
    assert GOOD.complaint(500) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inducing_fraction": 0.0}, "above 0 and at most 1"),
        ({"inducing_fraction": 1.5}, "above 0 and at most 1"),
        ({"num_inducing": 0}, "num_inducing must be at least 1"),
        ({"num_samples": 3}, "num_samples must be at least 4"),
        ({"burn_in": -1}, "burn_in must be at least 0"),
        ({"thinning": 0}, "thinning must be at least 1"),
        ({"leapfrog_steps": 0}, "leapfrog_steps must be at least 1"),
        ({"hyper_leapfrog_steps": 0}, "hyper_leapfrog_steps must be at least 1"),
        ({"variance_centre": 0.0}, "must be positive"),
        ({"lengthscale_spread": -1.0}, "must be positive"),
        ({"variance_spread": 0.0}, "must be positive"),
        ({"target_acceptance": 1.0}, "between 0 and 1"),
    ],
)
def test_settings_that_make_no_chain_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        SGPMCSettings(**options)


def test_data_and_fixed_hyperparameters_are_checked():
    with pytest.raises(ValueError, match="one class for each of the 3 inputs"):
        sgpmc(torch.zeros(3, 2), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="2 or 3 finite numbers"):
        sgpmc(torch.randn(4, 2), torch.tensor([0, 1, 0, 1]), hyper=torch.zeros(1))
