"""Three gaps, told apart: known answers, the paper's bound, and agreement with a slow reference."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from opu.distributions.dirichlet import Dirichlet
from opu.distributions.kernels import Exponential, Polynomial
from opu.distributions.log_ratio_fit import fit_logistic_normal
from opu.distributions.logistic_normal import LogisticNormal
from opu.distributions.pointwise import minimum_mmd
from opu.fidelity import gaps
from opu.fidelity.gaps import squared_distance


def clouds(num_inputs, num_classes, num_particles, spread, seed):
    source = torch.Generator().manual_seed(seed)
    centre = 2 * torch.randn(num_inputs, num_classes, generator=source, dtype=torch.float64)
    noise = torch.randn(num_particles, num_inputs, num_classes, generator=source, dtype=torch.float64)
    return (centre + spread * noise).log_softmax(-1)


def predictions(num_inputs, num_classes, seed):
    source = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(num_inputs, num_classes, generator=source, dtype=torch.float64)
    return Dirichlet.from_logits(logits, 3 * torch.randn(num_inputs, generator=source, dtype=torch.float64))


def logistic_normals(num_inputs, num_classes, seed, spread=1.0):
    source = torch.Generator().manual_seed(seed)
    location = 2 * torch.randn(num_inputs, num_classes, generator=source, dtype=torch.float64)
    log_scale = torch.full_like(location, spread).log()
    shared = 0.5 * torch.randn(num_inputs, num_classes, 2, generator=source, dtype=torch.float64)
    return LogisticNormal(location, log_scale, spread * shared)


FAMILIES = {"dirichlet": predictions, "logistic_normal": logistic_normals}


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    num_classes=st.integers(2, 6),
    num_particles=st.integers(4, 90),
    spread=st.floats(0.05, 4.0),
    seed=st.integers(0, 10**6),
)
def test_amortisation_lies_between_nothing_and_the_papers_bound(family, num_classes, num_particles, spread, seed):
    found = gaps(FAMILIES[family](3, num_classes, seed), clouds(3, num_classes, num_particles, spread, seed + 1))
    assert (found.amortisation >= 0).all()
    assert (found.amortisation <= found.bound + 1e-4).all()  # squares are exact to 1e-9, roots to a little less
    assert (found.best <= found.total).all()
    parts = found.squared_parts()
    assert sum(parts.values()) == pytest.approx(float(found.total.square().mean()), rel=1e-6)


@pytest.mark.parametrize("spread", [0.5, 1.5])
def test_the_best_is_the_pointwise_optimum_whoever_is_judged(spread):
    log_particles = clouds(12, 6, 300, spread, 7).float()
    optimum = minimum_mmd(log_particles.double(), max_steps=300)
    reached = gaps(optimum, log_particles)
    poor = gaps(predictions(12, 6, 8), log_particles)
    noise = poor.noise.square().mean()
    assert abs(float((poor.best.square() - reached.total.square()).mean() / noise)) < 0.15
    assert float((poor.best.square() - reached.best.square()).abs().max() / noise) < 0.5


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kernel", [Exponential(), Polynomial(3)], ids=str)
def test_distances_are_those_of_all_pairs(kernel, family):
    q, log_particles = FAMILIES[family](4, 3, 0), clouds(4, 3, 30, 1.0, 1)
    found = gaps(q, log_particles, kernel)
    cloud, draws = log_particles.exp().permute(1, 0, 2), q.rsample(3000).permute(1, 0, 2)
    squared = (
        kernel.gram(cloud, cloud).mean((1, 2))
        - 2 * kernel.gram(cloud, draws).mean((1, 2))
        + kernel.gram(draws[:, :1500], draws[:, 1500:]).mean((1, 2))
    )
    torch.testing.assert_close(
        found.total.square(), squared, rtol=0.05, atol=3e-3 * float(kernel.gram(cloud, cloud).max())
    )


@pytest.mark.parametrize("kernel", [Exponential(), Polynomial(3)], ids=str)
@pytest.mark.parametrize(("size", "half"), [(6, 3), (5, 2)])
def test_noise_is_what_all_ways_to_halve_a_cloud_say_on_average(kernel, size, half):
    log_particles = clouds(4, 3, size, 1.0, 1)
    cloud, apart = log_particles.exp().permute(1, 0, 2), []
    for chosen in itertools.combinations(range(size), half):
        first, second = cloud[:, chosen], cloud[:, [i for i in range(size) if i not in chosen]]
        own = kernel.gram(first, first).mean((1, 2)) + kernel.gram(second, second).mean((1, 2))
        apart.append(own - 2 * kernel.gram(first, second).mean((1, 2)))
    noise = gaps(predictions(4, 3, 0), log_particles, kernel).noise.square()
    # Halves are (1/m + 1/n) v apart where the whole is v / (m + n) from its law.
    torch.testing.assert_close(noise, torch.stack(apart).mean(0) * half * (size - half) / size**2)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_student_that_is_right_is_off_by_the_noise_alone(family):
    q = FAMILIES[family](40, 4, 3)
    found = gaps(q, q.log_rsample(400))
    assert float(found.total.mean()) == pytest.approx(float(found.noise.mean()), rel=0.25)
    parts = found.squared_parts()
    assert parts["noise"] > 0.8 * sum(parts.values())


def test_noise_falls_with_the_root_of_the_number_of_particles():
    q = predictions(60, 4, 4)
    few, many = (gaps(q, q.log_rsample(n)).noise.square().mean() for n in (50, 450))
    assert float(few / many) == pytest.approx(9, rel=0.3)


def test_two_points_inside_are_the_familys_fault_and_two_corners_are_not():
    inside = torch.tensor([[0.45, 0.45, 0.1], [0.1, 0.45, 0.45]], dtype=torch.float64).log()
    corners = torch.tensor([[0.0, -12.0, -12.0], [-12.0, 0.0, -12.0]], dtype=torch.float64).log_softmax(-1)
    turns = torch.arange(1600) % 2
    found = gaps(predictions(2, 3, 6), torch.stack([inside[turns], corners[turns]], 1))
    # A hill lies between two points, however steep; concentrations near 0 sit in corners just so.
    assert float(found.family[0]) > 0.03 > float(found.family[1])
    assert float(found.family[0]) > 3 * float(found.noise[0])


def test_a_logistic_normal_is_judged_by_the_fit_of_its_rank_or_by_itself_where_it_is_closer():
    q = logistic_normals(12, 4, 5)
    log_particles = q.log_rsample(400)
    far = LogisticNormal(q.location + 1.0 * torch.eye(4).double()[0], q.log_scale, q.factors)
    fitted = gaps(fit_logistic_normal(log_particles, 2), log_particles)
    torch.testing.assert_close(gaps(far, log_particles).best, fitted.total)
    assert float(fitted.amortisation.max()) == 0.0 == float(fitted.bound.max())
    right = gaps(q, log_particles)
    assert bool((right.best <= fitted.total + 1e-9).all())
    assert float(gaps(far, log_particles).amortisation.mean()) > 5 * float(right.amortisation.mean())


@pytest.mark.parametrize("family", FAMILIES)
def test_squared_distances_have_no_bias_from_few_particles(family):
    q = FAMILIES[family](300, 3, 2)
    few = squared_distance(q, q.log_rsample(8), Exponential())
    noise = gaps(q[:1], q[:1].log_rsample(8)).noise.square()
    assert abs(float(few.mean())) < 4 * float(few.std()) / 300**0.5 + 0.02 * float(noise)


def test_a_logistic_normal_with_no_spread_is_a_point():
    location = torch.tensor([[1.0, 0.0, -1.0]], dtype=torch.float64)
    q = LogisticNormal(location, torch.full_like(location, -40.0), location.new_zeros(1, 3, 0))
    cloud, point, kernel = clouds(1, 3, 20, 1.0, 3), location.softmax(-1).unsqueeze(1), Exponential()
    particles = cloud.exp().permute(1, 0, 2)
    own = kernel.gram(particles, particles).mean() + kernel.gram(point, point).mean()
    expected = (own - 2 * kernel.gram(particles, point).mean()).sqrt()
    assert float(gaps(q, cloud).total) == pytest.approx(float(expected), rel=1e-6)


def test_fewer_than_four_particles_are_refused():
    with pytest.raises(ValueError, match="at least four particles per input; got 3"):
        gaps(predictions(2, 3, 0), clouds(2, 3, 3, 1.0, 0))
    with pytest.raises(ValueError, match="log-probabilities"):
        gaps(predictions(2, 3, 0), clouds(2, 3, 9, 1.0, 0).exp())
