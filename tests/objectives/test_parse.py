"""Objectives by name: a sum in words is the sum of the objects."""

import math

import pytest
import torch

from opu.distributions.dirichlet import Dirichlet
from opu.distributions.kernels import Exponential, Polynomial
from opu.objectives import (
    NAMES,
    ClippedKL,
    CriticEMD,
    CrossEntropy,
    ExactMMD,
    ForwardKL,
    SampledMMD,
    Sinkhorn,
    WeightedSum,
    default,
    parse,
)

OBJECTS = {
    "kl": ForwardKL,
    "clipped_kl": ClippedKL,
    "cross_entropy": CrossEntropy,
    "mmd": lambda: ExactMMD(Exponential()),
    "mmd_polynomial": lambda: ExactMMD(0.5 * Polynomial(3) + 0.5 * Polynomial(4)),
    "mmd_sampled": SampledMMD,
    "emd": CriticEMD,
    "sinkhorn": Sinkhorn,
}


def value(objective) -> torch.Tensor:
    """On one fixed problem, from one random state."""
    torch.manual_seed(0)
    q = Dirichlet.from_concentration(torch.tensor([[2.0, 3.0, 4.0], [0.5, 0.5, 0.1]]))
    log_particles = Dirichlet.from_concentration(torch.tensor([[5.0, 1.0, 1.0], [1.0, 1.0, 1.0]])).log_rsample(12)
    return objective(torch.randn(2, 4), log_particles, q)


def test_a_sum_in_words_is_the_sum_of_the_objects():
    got = value(parse("0.1*kl + 10*mmd"))
    assert torch.equal(got, value(0.1 * ForwardKL() + 10.0 * ExactMMD()))
    torch.testing.assert_close(got, 0.1 * value(ForwardKL()) + 10 * value(ExactMMD()))


@pytest.mark.parametrize(("num_classes", "weight"), [(2, 0.5), (10, 0.1), (47, 0.0213), (50, 0.02)])
def test_the_default_averages_kl_over_the_classes(num_classes, weight):
    terms = parse(default(num_classes)).terms
    assert [(w, type(term)) for w, term in terms] == [(weight, ClippedKL), (10.0, ExactMMD)]


@pytest.mark.parametrize("num_classes", [51, 1000])
def test_the_default_does_without_kl_where_classes_are_many(num_classes):
    terms = parse(default(num_classes)).terms
    assert [(w, type(term)) for w, term in terms] == [(1.0, CrossEntropy), (10.0, ExactMMD)]


def test_every_name_is_known():
    assert NAMES.keys() == OBJECTS.keys()


@pytest.mark.parametrize("name", OBJECTS)
def test_a_name_alone_is_its_object(name):
    objective = parse(name)
    assert [weight for weight, _ in objective.terms] == [1.0]
    assert type(objective.terms[0][1]) is type(OBJECTS[name]())
    assert torch.equal(value(objective), value(OBJECTS[name]()))


@pytest.mark.parametrize("name", OBJECTS)
def test_a_weight_scales_its_object(name):
    torch.testing.assert_close(value(parse(f"2.5*{name}")), 2.5 * value(OBJECTS[name]()))


@pytest.mark.parametrize(
    "text", ["0.1*kl+10*mmd", "  0.1 * kl   +10* mmd ", "1e-1*kl + 1e1*mmd", ".1*kl + 10.*mmd", "\t0.1*kl\n+ 10*mmd"]
)
def test_spaces_and_ways_of_writing_numbers_do_not_matter(text):
    objective = parse(text)
    assert isinstance(objective, WeightedSum)
    assert [(weight, type(term)) for weight, term in objective.terms] == [(0.1, ForwardKL), (10.0, ExactMMD)]


def test_each_parse_builds_objects_of_its_own():
    one, two = parse("emd").terms[0][1], parse("emd").terms[0][1]
    assert one is not two


@pytest.mark.parametrize(
    "text", ["kld", "0.1*KL", "0.1*kl + 10*mdm", "", "kl +", "kl - mmd", "10", "kl*2", "+", "0.1 kl"]
)
def test_an_unknown_name_lists_those_that_exist(text):
    with pytest.raises(ValueError, match=f"over the names {', '.join(NAMES)}; got '.*' in '"):
        parse(text)


@pytest.mark.parametrize("text", ["x*kl", "*kl", "kl + 2*3*mmd", "0,1*kl", "1e*kl"])
def test_a_weight_that_is_no_number_is_refused(text):
    with pytest.raises(ValueError, match=r"the weight before '\*' must be a number; got '.*' in '"):
        parse(text)


@pytest.mark.parametrize("weight", [0.0, -1.0, math.nan])
def test_a_weight_that_is_not_positive_is_refused(weight):
    with pytest.raises(ValueError, match=r"weight of an objective must be positive and finite; got .* for ForwardKL"):
        parse(f"{weight}*kl")
    with pytest.raises(ValueError, match=r"weight of an objective must be positive and finite; got .* for ForwardKL"):
        weight * ForwardKL()


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_batch_has_no_values_and_trains_nothing(name):
    objective = NAMES[name]()
    logits = torch.zeros(0, 3, requires_grad=True)
    q = Dirichlet.from_logits(logits, logits[:, 0])
    value = objective(torch.zeros(0, 4), torch.zeros(5, 0, 3), q)
    assert value.shape == (0,)
    value.sum().backward()
    states = objective.state_dict().get("critic", {}).values()
    assert all(t.isfinite().all() for t in states)
