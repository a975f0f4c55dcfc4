"""SGLD against a posterior that is known in closed form, and the laws of a chain."""

import itertools

import pytest
import torch
from torch import nn

from opu.teachers import Chain, LangevinSettings, WeightSamples, sgld
from opu.teachers.diagnostics import effective_sample_size


def gaussian_log_likelihood(outputs, labels):
    return -0.5 * (outputs - labels).square().sum(-1)


def linear_problem(num_rows=200, num_regressions=1):
    """Correlated features, and labels with unit noise for some independent regressions."""
    x = torch.randn(num_rows, 2) @ torch.tensor([[1.0, 0.6], [0.0, 0.8]])
    return x, x @ torch.tensor([[1.0], [-2.0]]) + torch.randn(num_rows, num_regressions)


def stationary_covariance(precision, noise):
    """The S for which S = M S M' + noise, with M = I - step precision / 2: what a linear chain of such steps settles at."""
    transition = torch.eye(2).double() - precision
    square = torch.eye(4).double() - torch.kron(transition, transition)
    return torch.linalg.solve(square, noise.flatten(1).T).T.reshape(-1, 2, 2)


@pytest.mark.parametrize(
    ("batch_size", "prior_precision", "size"), [(200, 1.0, 1e-3), (200, 200.0, 6e-4), (50, 1.0, 1e-3)]
)
def test_samples_have_the_moments_of_a_gaussian_posterior(batch_size, prior_precision, size):
    # One linear layer with many outputs is as many regressions at once. Steps of a finite size, whose minibatches are drawn
    # with replacement, are a linear recursion with a known stationary covariance; for small steps it is the posterior's.
    x, labels = linear_problem(num_regressions=96)
    settings = LangevinSettings(
        first_step=size,
        last_step=size,
        prior_precision=prior_precision,
        batch_size=batch_size,
        burn_in=100,
        thinning=12,
        num_samples=100,
    )
    teacher = sgld(nn.Linear(2, 96, bias=False), x, labels, settings, gaussian_log_likelihood)
    x, labels = x.double(), labels.double()
    precision = x.T @ x + prior_precision * torch.eye(2)
    mean = torch.linalg.solve(precision, x.T @ labels).T
    slopes = ((labels - x @ mean.T).T[..., None] * x).mT  # (regressions, 2, rows)
    minibatch = 200**2 / batch_size * torch.stack([torch.cov(each, correction=0) for each in slopes])
    expected = stationary_covariance(size * precision / 2, size * torch.eye(2) + size**2 / 4 * minibatch)
    draws = teacher.samples["weight"].double() - mean
    error = draws.std((0, 1)) / torch.from_numpy(effective_sample_size(draws.transpose(0, 1).numpy())).sqrt()
    assert (draws.mean((0, 1)).abs() < 4.5 * error).all()
    products = (draws[..., :, None] * draws[..., None, :] - expected).flatten(2)
    error = products.std((0, 1)) / torch.from_numpy(effective_sample_size(products.transpose(0, 1).numpy())).sqrt()
    assert (products.mean((0, 1)).abs() < 4.5 * error).all()
    assert (error[[0, 3]] < 0.025 * expected.mean(0).diagonal()).all()  # so that a variance a tenth off is noticed


def test_the_prior_pulls_the_weights_in():
    x, labels = linear_problem()
    sizes = []
    for prior_precision in (1e-3, 1e3):
        torch.manual_seed(0)
        settings = LangevinSettings(
            first_step=2e-4, last_step=2e-4, prior_precision=prior_precision, burn_in=300, thinning=2, num_samples=100
        )
        teacher = sgld(nn.Linear(2, 1, bias=False), x, labels, settings, gaussian_log_likelihood)
        sizes.append(float(teacher.average_weights()["weight"].norm()))
    assert sizes[1] < 0.5 * sizes[0]


def test_the_step_size_falls_from_the_first_to_the_last_as_a_power():
    settings = LangevinSettings(first_step=1e-3, last_step=1e-5, decay=0.55, burn_in=100, thinning=2, num_samples=50)
    sizes = [settings.step_size(step) for step in range(settings.num_steps + 1)]
    assert sizes[0] == pytest.approx(1e-3)
    assert sizes[-1] == pytest.approx(1e-5)
    assert all(later < earlier for earlier, later in itertools.pairwise(sizes))
    # a (b + t)^-decay is a straight line once it is raised to -1 / decay.
    line = torch.tensor(sizes, dtype=torch.float64) ** (-1 / 0.55)
    steps = line.diff()
    torch.testing.assert_close(steps, steps.mean().expand_as(steps), rtol=1e-6, atol=0.0)
    assert settings.step_size(10**6) == pytest.approx(1e-5)


def test_a_chain_leaves_the_network_alone_and_gives_ever_new_states():
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4))
    before = {name: w.clone() for name, w in net.state_dict().items()}
    settings = LangevinSettings(first_step=1e-4, last_step=1e-4, thinning=2, burn_in=0, num_samples=3)
    chain = Chain(net, torch.randn(30, 3), torch.randint(4, (30,)), settings)
    particles = chain(torch.randn(5, 3), 3)
    assert particles.shape == (3, 5, 4)
    assert chain.step == 6
    assert not torch.equal(particles[0], particles[1])
    torch.testing.assert_close(particles.exp().sum(-1), torch.ones(3, 5))
    assert all(torch.equal(before[name], w) for name, w in net.state_dict().items())


def test_a_single_step_is_the_formula():
    torch.manual_seed(3)
    x, labels = linear_problem(1)
    # Four equal rows: whichever are drawn, the slope is the same.
    settings = LangevinSettings(first_step=1e-2, last_step=1e-2, prior_precision=7.0, batch_size=2, burn_in=0)
    chain = Chain(nn.Linear(2, 1, bias=False), x.repeat(4, 1), labels.repeat(4, 1), settings, gaussian_log_likelihood)
    before = chain.net.weight.detach().clone()
    slope = 4 * (labels - x @ before.T) * x - 7.0 * before
    torch.manual_seed(5)
    torch.randint(4, (2,))
    noise = torch.randn_like(before)
    torch.manual_seed(5)
    chain.walk(1)
    torch.testing.assert_close(chain.net.weight.detach(), before + 0.005 * slope + 0.1 * noise, rtol=1e-5, atol=1e-6)


def test_samples_are_kept_in_one_file_and_come_back(tmp_path):
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4))
    settings = LangevinSettings(first_step=1e-3, last_step=1e-3, thinning=1, burn_in=0, num_samples=20)
    teacher = sgld(net, torch.randn(30, 3), torch.randint(4, (30,)), settings)
    path = tmp_path / "posterior.safetensors"
    teacher.save(path)
    assert path.stat().st_size < 2 * sum(w.numel() for w in teacher.samples.values()) + 1000
    again = WeightSamples.load(net, path)
    assert list(again.samples) == list(teacher.samples)  # a file has an order of its own
    x = torch.randn(6, 3)
    torch.testing.assert_close(again(x, 20), teacher(x, 20), rtol=0.0, atol=1e-2)
    torch.testing.assert_close(again.average_weights(), teacher.average_weights(), rtol=0.0, atol=1e-3)


def test_a_file_of_samples_that_is_cut_short_is_refused(tmp_path):
    net = nn.Linear(3, 4)
    teacher = WeightSamples(net, [net.state_dict(), net.state_dict()])
    path = tmp_path / "posterior.safetensors"
    teacher.save(path)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ValueError, match="not a whole file of weight samples"):
        WeightSamples.load(net, path)


def test_weights_too_large_for_half_precision_are_not_written(tmp_path):
    net = nn.Linear(3, 4)
    teacher = WeightSamples(net, [{name: 1e6 * torch.ones_like(w) for name, w in net.state_dict().items()}])
    with pytest.raises(ValueError, match=r"below 65,504"):
        teacher.save(tmp_path / "posterior.safetensors")
    assert not (tmp_path / "posterior.safetensors").exists()


def test_a_chain_that_runs_away_says_so():
    x, labels = linear_problem()
    settings = LangevinSettings(first_step=1.0, last_step=1.0, burn_in=0, thinning=300, num_samples=2)
    with pytest.raises(ValueError, match="smaller first_step"):
        sgld(nn.Linear(2, 1, bias=False), x, labels, settings, gaussian_log_likelihood)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"first_step": 1e-6, "last_step": 1e-5}, "may not rise"),
        ({"last_step": 0.0}, "must be positive"),
        ({"thinning": 0}, "at least 1"),
        ({"num_samples": 0}, "at least 1"),
        ({"burn_in": -1}, "burn_in must be at least 0"),
        ({"prior_precision": 0.0}, "must be positive"),
        ({"decay": 0.0}, "must be positive"),
    ],
)
def test_settings_that_make_no_chain_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        LangevinSettings(**options)


def test_inputs_and_labels_must_agree():
    with pytest.raises(ValueError, match="one label for each input"):
        Chain(nn.Linear(2, 2), torch.zeros(3, 2), torch.zeros(2, dtype=torch.int64))
