"""An ensemble against its members, one by one."""

import pytest
import torch
from torch import nn

from opu.teachers import Ensemble


def members(*tail: nn.Module) -> list[nn.Module]:
    """Three architectures that have nothing in common but their inputs and classes."""
    return [
        nn.Sequential(nn.Linear(4, 3), *tail),
        nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3), *tail),
        nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 2), nn.Flatten(), nn.Linear(6, 3), *tail),
    ]


def test_each_particle_is_the_answer_of_one_member():
    networks, x = members(), torch.randn(7, 4)
    particles = Ensemble(networks)(x, 3)
    for particle, member in zip(particles, networks, strict=True):
        torch.testing.assert_close(particle, member.eval()(x).log_softmax(-1).detach())


def test_fewer_particles_are_distinct_members_and_all_of_them_in_turn():
    networks, x = members(), torch.randn(7, 4)
    teacher = Ensemble(networks)
    everyone = teacher(x, 3)
    seen = set()
    for _ in range(30):
        pair = teacher(x, 2)
        who = [next(i for i in range(3) if torch.equal(p, everyone[i])) for p in pair]
        assert len(set(who)) == 2
        seen.add(frozenset(who))
    assert len(seen) == 3


@pytest.mark.parametrize(
    ("tail", "outputs"), [(nn.Softmax(-1), "probabilities"), (nn.LogSoftmax(-1), "log_probabilities")]
)
def test_members_may_give_probabilities(tail, outputs):
    networks, x = members(), torch.randn(7, 4)
    expected = Ensemble(networks)(x, 3)
    with_tail = [nn.Sequential(*network, tail) for network in networks]
    torch.testing.assert_close(Ensemble(with_tail, outputs=outputs)(x, 3), expected, rtol=1e-4, atol=1e-5)


def test_a_softmax_announced_as_logits_is_refused():
    with pytest.raises(ValueError, match="announced as logits but lie on the simplex"):
        Ensemble(members(nn.Softmax(-1)))(torch.randn(5, 4), 3)


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_members_are_refused(count):
    with pytest.raises(ValueError, match=f"at least two members; got {count}"):
        Ensemble(members()[:count])
