"""CompactApprox against brute force, and against groups picked blindly."""

import itertools

import pytest
import torch

from opu.teachers import LogisticSamples
from reproduction.baselines import best_group, compact_approximation
from reproduction.baselines.compact import _main_directions, _random_groups


def particles(num_samples, num_rows=12, num_classes=3):
    """Predictions of random linear classifiers."""
    weights = torch.randn(num_samples, 4, num_classes)
    return (torch.randn(num_rows, 4) @ weights).log_softmax(-1)


def divergence(log_particles, group):
    """KL from the pool's average prediction to the group's, averaged over inputs."""
    p, q = log_particles.exp().mean(0), log_particles[torch.as_tensor(group)].exp().mean(0)
    return float((p * (p / q).log()).sum(-1).mean())


@pytest.mark.parametrize("sharpness", [1.0, 4.0])  # sharp predictions differ so much that the second order misleads
@pytest.mark.parametrize(("pool", "size"), [(6, 2), (7, 4), (5, 1)])
def test_on_a_small_pool_it_is_the_best_of_all_groups(pool, size, sharpness):
    log_particles = (sharpness * particles(pool)).log_softmax(-1)
    best = min(itertools.combinations(range(pool), size), key=lambda group: divergence(log_particles, group))
    assert best_group(log_particles, size, num_groups=250).tolist() == list(best)


def test_many_more_groups_than_finalists_still_end_with_one_of_the_very_best():
    log_particles = (particles(14) / 3).log_softmax(-1)
    every = sorted(divergence(log_particles, group) for group in itertools.combinations(range(14), 4))
    found = divergence(log_particles, best_group(log_particles, 4, num_groups=20_000))
    assert len(every) == 1001
    assert found <= every[2] * (1 + 1e-5)


def test_it_is_far_closer_to_the_pool_than_a_group_picked_blindly():
    log_particles = particles(500, num_rows=40)
    found = divergence(log_particles, best_group(log_particles, 25, num_groups=5000))
    blind = [divergence(log_particles, torch.randperm(500)[:25]) for _ in range(101)]
    assert found < 0.4 * sorted(blind)[50]
    assert found < min(blind)


def test_more_groups_can_only_help():
    log_particles = particles(300, num_rows=40)
    found = []
    for num_groups in (1, 200, 10_000):
        torch.manual_seed(4)
        found.append(divergence(log_particles, best_group(log_particles, 10, num_groups)))
    assert found[0] > found[1] > found[2]


def test_predictions_that_underflow_decide_nothing():
    log_particles = (4 * particles(7)).log_softmax(-1)
    certain = torch.tensor([0.0, -200.0, -300.0]).expand(7, 1, 3)
    alone = best_group(log_particles, 4, 250)
    assert torch.equal(best_group(torch.cat([log_particles, certain], 1), 4, 250), alone)


def test_groups_are_random_choices_without_repetition():
    groups = _random_groups(11, 4, 3001)
    assert groups.shape == (3001, 4)
    assert all(len(set(group)) == 4 for group in groups.tolist())
    share = groups.flatten().bincount(minlength=11) / 3001
    # Each sample is in a group with probability 4 / 11; two groups of one shuffle are not independent, but nearly.
    torch.testing.assert_close(share, torch.full((11,), 4 / 11), rtol=0.0, atol=4 * 0.481 / 3001**0.5)


def test_main_directions_keep_the_lengths_of_sums():
    deviations = torch.randn(300, 40) @ torch.randn(40, 500)
    short = _main_directions(deviations)
    assert short.shape[1] < deviations.shape[1]
    for _ in range(5):
        group = torch.randperm(300)[:20]
        torch.testing.assert_close(short[group].sum(0).norm(), deviations[group].sum(0).norm(), rtol=1e-3, atol=0.0)


def pool_of(num_samples):
    return LogisticSamples(0.5 * torch.randn(num_samples, 2, 4) + 1, torch.randn(num_samples, 2))


def test_it_is_a_teacher_whose_average_is_the_pools():
    pool, x = pool_of(400), torch.randn(60, 4)
    small = compact_approximation(pool, x, group_size=20, num_groups=3000)
    assert small.num_samples == 20
    whole = pool(x, 400).exp().mean(0)
    blind = (pool.take(torch.arange(20))(x, 20).exp().mean(0) - whole).abs().mean()
    assert float((small(x, 20).exp().mean(0) - whole).abs().mean()) < 0.5 * float(blind)
    members = {tuple(row) for row in pool.coefficients.flatten(1).tolist()}
    assert len(members & {tuple(row) for row in small.coefficients.flatten(1).tolist()}) == 20


def test_with_little_memory_fewer_inputs_are_compared(monkeypatch):
    pool, x = pool_of(40), torch.randn(60, 4)
    seen = []
    ask = LogisticSamples.__call__
    monkeypatch.setattr(LogisticSamples, "__call__", lambda self, x, s: seen.append(x) or ask(self, x, s))
    compact_approximation(pool, x, group_size=5, num_groups=10, memory_budget=4 * 40 * 3 * 7)
    compact_approximation(pool, x, group_size=5, num_groups=10)
    assert [len(rows) for rows in seen] == [7, 60]
    assert torch.equal(seen[0][[0, -1]], x[[0, -1]])


@pytest.mark.parametrize(("size", "num_groups"), [(0, 10), (7, 10), (3, 0)])
def test_groups_that_cannot_be_drawn_are_refused(size, num_groups):
    with pytest.raises(ValueError, match=r"a group needs 1 to 6 samples.* got group_size="):
        best_group(particles(6), size, num_groups)


def test_there_must_be_inputs_to_compare_at():
    with pytest.raises(ValueError, match="at least one row"):
        compact_approximation(pool_of(6), torch.zeros(0, 4), group_size=2)
