"""Any callable as a teacher, and the checks of its particles."""

import inspect

import numpy as np
import pytest
import torch

from opu.checks import check_particles
from opu.teachers import Function

X = torch.zeros(5, 2)
LOG_P = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).log_softmax(-1)


def returning(values, outputs="log_probabilities"):
    return Function(lambda x, num_particles: values, outputs=outputs)


FORMS = {
    "log-probabilities": (LOG_P, "log_probabilities"),
    "probabilities": (LOG_P.exp(), "probabilities"),
    "logits": (LOG_P + 3, "logits"),
    "numpy": (LOG_P.exp().numpy(), "probabilities"),
    "float32": (LOG_P.float(), "log_probabilities"),
}


@pytest.mark.parametrize(("values", "outputs"), FORMS.values(), ids=FORMS)
def test_every_form_of_one_law_gives_the_same_particles(values, outputs):
    particles = returning(values, outputs)(X, 4)
    torch.testing.assert_close(particles.double(), LOG_P, rtol=1e-5, atol=1e-5)


def test_the_function_gets_the_inputs_and_the_number_of_particles():
    seen = []

    def function(x, num_particles):
        seen.append((x, num_particles))
        return torch.zeros(num_particles, len(x), 2).log_softmax(-1)

    assert Function(function)(X, 6).shape == (6, 5, 2)
    assert seen[0][0] is X
    assert seen[0][1] == 6


def test_read_only_arrays_are_taken_without_a_warning():
    """As JAX and memory maps give them."""
    values = LOG_P.numpy().copy()
    values.flags.writeable = False
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        particles = returning(values)(X, 4)
    finally:
        torch.set_warn_always(always)
    torch.testing.assert_close(particles, LOG_P)


REFUSED = {
    "two axes": (LOG_P[0], r"three axes \(S, B, K\).*got shape \(5, 3\)"),
    "binary": (LOG_P[..., 0], "stack the probabilities of both"),
    "no samples": (LOG_P[:0], r"three axes .*got shape \(0, 5, 3\)"),
    "one class": (torch.zeros(4, 5, 1), r"at least two classes .*stack \[1 - p, p\]"),
    "other inputs": (LOG_P[:, :4], r"one column for each of the 5 inputs .*got shape \(4, 4, 3\)"),
    "swapped axes": (LOG_P.transpose(0, 1), "one column for each of the 5 inputs"),
    "NaN": (LOG_P.clone().index_fill_(2, torch.tensor(1), torch.nan), "must not be NaN or infinite"),
    "infinite": (LOG_P.clone().index_fill_(2, torch.tensor(1), torch.inf), "must not be NaN or infinite"),
    "probabilities": (LOG_P.exp(), "must be log-probabilities; got plain probabilities"),
    "logits": (LOG_P + 3, r"exponentials sum to 1; got rows that sum to 20\.1 \.\. 20\.1"),
}


@pytest.mark.parametrize(("values", "message"), REFUSED.values(), ids=REFUSED)
def test_what_are_not_log_probabilities_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        returning(values)(X, 4)


@pytest.mark.parametrize(("values", "outputs"), [(LOG_P[0].exp(), "probabilities"), (LOG_P[0], "logits")])
def test_the_rank_is_checked_in_every_form(values, outputs):
    with pytest.raises(ValueError, match="three axes"):
        returning(values, outputs)(X, 4)


def test_what_is_not_a_tensor_is_refused():
    with pytest.raises(ValueError, match=r"must return a tensor of log-probabilities .*got list"):
        inspect.unwrap(check_particles)([[[0.5, 0.5]]])  # without the test run's own check of types


def test_another_number_of_classes_than_the_students_is_refused():
    check_particles(LOG_P, num_rows=5, num_classes=3)
    with pytest.raises(ValueError, match=r"the student predicts 4 classes .* build the student with num_classes=3"):
        check_particles(LOG_P, num_classes=4)


@pytest.mark.parametrize("kind", [np.longdouble, np.float16, ">f4", ">f8"])
def test_arrays_of_every_type_are_particles(kind):
    def function(x, num_particles):
        return np.full((num_particles, len(x), 2), 0.5).astype(kind)

    particles = Function(function, outputs="probabilities")(torch.zeros(3, 2), 4)
    torch.testing.assert_close(particles.double().exp(), torch.full((4, 3, 2), 0.5, dtype=torch.float64))


@pytest.mark.parametrize("kind", [object, "U3", [("a", "f4")]])
def test_arrays_of_what_are_not_numbers_are_refused(kind):
    with pytest.raises(ValueError, match="values must hold numbers; got an array of type"):
        Function(lambda x, s: np.zeros((s, len(x), 2), kind), outputs="probabilities")(torch.zeros(3, 2), 4)
