"""Samples of logistic regressions as a teacher, whoever drew them."""

import pytest
import torch

from opu.files import write_state
from opu.teachers import LogisticSamples, Mixing


def samples(num_samples=6, num_logits=2, num_features=3):
    return LogisticSamples(
        torch.randn(num_samples, num_logits, num_features, dtype=torch.float64),
        torch.randn(num_samples, num_logits, dtype=torch.float64),
        {"coefficients": Mixing(12.5, 80.0, 1.25), "logits": Mixing(3.0, 4.0, float("inf"))},
    )


def test_two_classes_are_the_sigmoid_of_one_logit():
    teacher, x = samples(num_logits=1), torch.randn(5, 3)
    logits = torch.einsum("bf,sf->sb", x.double(), teacher.coefficients[:, 0]) + teacher.intercepts
    particles = teacher(x, 6)
    assert particles.dtype == torch.float32
    expected = torch.stack([torch.sigmoid(-logits), torch.sigmoid(logits)], -1).log()
    torch.testing.assert_close(particles, expected.float())


def test_more_classes_break_a_stick():
    teacher, x = samples(num_logits=3), torch.randn(5, 3, dtype=torch.float64)
    particles = teacher(x, 6).exp()
    assert teacher.num_classes == 4
    for s in range(6):
        for b in range(5):
            left = 1.0
            for k in range(3):
                above = float(torch.sigmoid(teacher.coefficients[s, k] @ x[b] + teacher.intercepts[s, k]))
                assert float(particles[s, b, k]) == pytest.approx(left * (1 - above), rel=1e-4)
                left *= above
            assert float(particles[s, b, 3]) == pytest.approx(left, rel=1e-4)


def test_far_from_all_data_the_particles_are_still_log_probabilities():
    particles = samples(num_logits=3)(1e4 * torch.randn(5, 3), 6)
    assert bool(torch.isfinite(particles).all())
    torch.testing.assert_close(particles.logsumexp(-1), torch.zeros(6, 5))


def test_some_samples_are_a_teacher_of_their_own():
    teacher, x = samples(), torch.randn(5, 3)
    some = teacher.take(torch.tensor([4, 1]))
    torch.testing.assert_close(some(x, 10), teacher(x, 10)[[4, 1]])
    assert some.diagnostics == {}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_particles_are_where_the_samples_are(device):
    here, x = samples(), torch.randn(5, 3)
    there = here.to(device)
    assert there(x, 6).device.type == device
    torch.testing.assert_close(there(x, 6).cpu(), here(x, 6))
    assert there.diagnostics == here.diagnostics


def test_samples_and_diagnostics_are_kept_in_one_file_and_come_back(tmp_path):
    teacher = samples()
    teacher.save(tmp_path / "posterior.safetensors")
    again = LogisticSamples.load(str(tmp_path / "posterior.safetensors"))
    assert torch.equal(again.coefficients, teacher.coefficients)
    assert torch.equal(again.intercepts, teacher.intercepts)
    assert again.diagnostics == teacher.diagnostics


def test_files_that_are_not_whole_or_not_ours_are_refused(tmp_path):
    path = tmp_path / "posterior.safetensors"
    with pytest.raises(ValueError, match="there is no file"):
        LogisticSamples.load(path)
    samples().save(path)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ValueError, match="not a whole file"):
        LogisticSamples.load(path)
    write_state(path, {"kind": "something else"})
    with pytest.raises(ValueError, match="kind 'opu logistic samples'; got 'something else'"):
        LogisticSamples.load(path)


@pytest.mark.parametrize(
    ("coefficients", "intercepts"), [((5, 3), (5,)), ((5, 1, 3), (5, 2)), ((0, 1, 3), (0, 1)), ((5, 0, 3), (5, 0))]
)
def test_coefficients_and_intercepts_must_agree(coefficients, intercepts):
    with pytest.raises(ValueError, match=r"shape \(S, K - 1, F\) and intercepts \(S, K - 1\)"):
        LogisticSamples(torch.zeros(coefficients), torch.zeros(intercepts))


def test_coefficients_must_be_finite():
    with pytest.raises(ValueError, match="must be finite"):
        LogisticSamples(torch.full((5, 1, 3), torch.nan), torch.zeros(5, 1))


@pytest.mark.parametrize(
    ("shape", "message"),
    [((5, 4), "fitted to 3 features; got inputs with 4"), ((3,), "two axes"), ((5, 3, 1), "two axes")],
)
def test_other_features_are_refused(shape, message):
    with pytest.raises(ValueError, match=message):
        samples()(torch.zeros(shape), 2)
