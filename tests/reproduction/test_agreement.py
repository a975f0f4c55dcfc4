"""How closely a student follows its teacher: known answers for one that is its teacher, and for one that is too narrow."""

import pytest
import torch
from torch import nn

from opu.distributions import LogisticNormal
from reproduction.agreement import agreement


def law(x, width=1.0):
    """Six classes, of which the first is as sure as the input is large."""
    location = x * torch.tensor([1.0, 0.1, 0.0, -0.1, -0.2, -0.3])
    return LogisticNormal(location, torch.full_like(location, width).log(), torch.zeros(len(x), 6, 1))


class Student(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.width = width

    def forward(self, x):
        return law(x, self.width)


def teacher(x, num_particles):
    return law(x).log_rsample(num_particles)


def test_a_student_that_is_its_teacher_follows_it():
    x = torch.linspace(0, 6, 700).unsqueeze(-1)  # two parts
    found = agreement(teacher, Student(1.0), x, 400)
    assert found["total_variation"] < 0.02
    assert abs(found["squared_mmd"]) < 1e-3
    assert found["rank_correlation"]["mutual_information"] > 0.97
    assert len(found["coverage"]["predicted"]) == 10
    for name, low, high in (("predicted", 86, 94), ("runner_up", 86, 94), ("below", 2, 8), ("above", 2, 8)):
        assert low < min(found["coverage"][name]) <= max(found["coverage"][name]) < high, name
    assert found["mutual_information"]["student"] == pytest.approx(found["mutual_information"]["teacher"], rel=0.05)


def test_a_student_that_is_too_narrow_is_seen_in_every_decile():
    x = torch.linspace(0, 6, 200).unsqueeze(-1)
    found = agreement(teacher, Student(0.3), x, 400)
    assert max(found["coverage"]["predicted"]) < 50
    assert found["mutual_information"]["student"] < 0.3 * found["mutual_information"]["teacher"]
    assert found["squared_mmd"] > 1e-3
