"""Any callable as a teacher, and the door through which its particles come in."""

import inspect

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from opu.checks import check_particles
from opu.teachers import Function
from opu.teachers.base import choose, to_log_probabilities

laws = settings(deadline=None, max_examples=50, derandomize=True)
X = torch.zeros(5, 2)
LOG_P = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).log_softmax(-1)


def answering(values, outputs="log_probabilities"):
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
    particles = answering(values, outputs)(X, 4)
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
        particles = answering(values)(X, 4)
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
    "probabilities": (LOG_P.exp(), "travel as log-probabilities; got plain probabilities"),
    "logits": (LOG_P + 3, r"exponentials sum to 1; got rows that sum to 20\.1 \.\. 20\.1"),
}


@pytest.mark.parametrize(("values", "message"), REFUSED.values(), ids=REFUSED)
def test_what_are_not_log_probabilities_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        answering(values)(X, 4)


@pytest.mark.parametrize(("values", "outputs"), [(LOG_P[0].exp(), "probabilities"), (LOG_P[0], "logits")])
def test_the_rank_is_checked_in_every_form(values, outputs):
    with pytest.raises(ValueError, match="three axes"):
        answering(values, outputs)(X, 4)


def test_what_is_not_a_tensor_is_refused():
    with pytest.raises(ValueError, match=r"must return a tensor of log-probabilities .*got list"):
        inspect.unwrap(check_particles)([[[0.5, 0.5]]])  # without the test run's own check of types


def test_another_number_of_classes_than_the_students_is_refused():
    check_particles(LOG_P, num_rows=5, num_classes=3)
    with pytest.raises(ValueError, match=r"the student predicts 4 classes .* build the student with num_classes=3"):
        check_particles(LOG_P, num_classes=4)


# --- conversion to log-probabilities ---------------------------------------------------------------------------------


@laws
@given(st.lists(st.floats(-60, 60), min_size=2, max_size=6), st.floats(-1000, 1000))
def test_logits_are_normalised_whatever_their_shift(logits, shift):
    values = torch.tensor([[[*logits]]], dtype=torch.float64)
    assume(float((values + shift).min()) < 0 or abs(float((values + shift).sum()) - 1) > 1e-3)  # else on the simplex
    shifted = to_log_probabilities(values + shift, "logits")
    torch.testing.assert_close(shifted.exp().sum(-1), torch.ones(1, 1, dtype=torch.float64))
    torch.testing.assert_close(shifted, values.log_softmax(-1), rtol=1e-9, atol=1e-9)


@laws
@given(st.lists(st.floats(0, 1), min_size=2, max_size=6), st.sampled_from([1e-12, 1e-6, 1e-3]))
def test_probabilities_are_kept_and_zeros_raised_to_the_floor(weights, floor):
    p = torch.tensor([[[*weights, 1.0]]], dtype=torch.float64)
    p = p / p.sum()
    answer = to_log_probabilities(p, "probabilities", floor)
    raised = p.clamp(min=floor)
    torch.testing.assert_close(answer.exp(), raised / raised.sum(), rtol=1e-9, atol=0)
    assert bool(torch.isfinite(answer).all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_exact_zeros_have_a_finite_logarithm_in_every_precision(dtype):
    answer = to_log_probabilities(torch.tensor([[[1.0, 0.0]]], dtype=dtype), "probabilities")
    assert bool(torch.isfinite(answer).all())
    assert float(answer[0, 0, 0]) == pytest.approx(0, abs=1e-6)


def test_log_probabilities_stay_as_they_are():
    torch.testing.assert_close(to_log_probabilities(LOG_P, "log_probabilities"), LOG_P, rtol=0, atol=1e-12)


def test_probabilities_announced_as_log_probabilities_are_refused():
    """A log_softmax would flatten them without a word, as it would probabilities announced as logits."""
    with pytest.raises(ValueError, match="probabilities"):
        to_log_probabilities(LOG_P.exp(), "log_probabilities")


@pytest.mark.parametrize(
    "values", [[0.7, 0.7], [0.5, 0.2], [1.2, -0.2], [torch.nan, 1.0]], ids=["above", "below", "negative", "NaN"]
)
def test_values_off_the_simplex_are_refused(values):
    with pytest.raises(ValueError, match="must lie on the simplex; got values in"):
        to_log_probabilities(torch.tensor([[values]]), "probabilities")


def test_an_unknown_kind_of_output_is_refused():
    with pytest.raises(ValueError, match="outputs must be logits, log_probabilities or probabilities; got 'odds'"):
        to_log_probabilities(LOG_P, "odds")


def test_outputs_that_lie_on_the_simplex_are_not_logits():
    with pytest.raises(ValueError, match="announced as logits but lie on the simplex"):
        to_log_probabilities(LOG_P.exp(), "logits")


# --- which posterior samples -----------------------------------------------------------------------------------------


@laws
@given(st.integers(1, 40), st.integers(1, 60))
def test_a_choice_never_repeats_a_sample_and_more_than_all_are_all_in_order(total, count):
    chosen = choose(total, count).tolist()
    assert len(set(chosen)) == len(chosen) == min(total, count)
    assert set(chosen) <= set(range(total))
    if count >= total:
        assert chosen == list(range(total))


def test_every_sample_is_chosen_as_often_as_any_other():
    counts = torch.stack([choose(6, 2).bincount(minlength=6) for _ in range(3000)]).sum(0).numpy()
    # Without repetition the counts vary a little less than a chi-square test supposes.
    assert np.abs(counts - 1000).max() < 5 * np.sqrt(3000 * (1 / 3) * (2 / 3))
