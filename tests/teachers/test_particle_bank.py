"""Stored particles: read from any file as they were written, given to the inputs they belong to, or refused."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from opu.teachers import ParticleBank

laws = settings(deadline=None, max_examples=50, derandomize=True)
S, N, K = 4, 6, 3
LOG_P = torch.randn(S, N, K, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
P = LOG_P.exp()
X = torch.randn(N, 2, generator=torch.Generator().manual_seed(1))


def npy(path: Path, values: torch.Tensor) -> Path:
    np.save(path / "bank.npy", values.numpy())
    return path / "bank.npy"


def fortran(path: Path, values: torch.Tensor) -> Path:
    np.save(path / "bank.npy", np.asfortranarray(values.numpy()))
    return path / "bank.npy"


def npz(path: Path, values: torch.Tensor) -> Path:
    np.savez(path / "bank.npz", particles=values.numpy())
    return path / "bank.npz"


def fortran_npz(path: Path, values: torch.Tensor) -> Path:
    np.savez(path / "bank.npz", particles=np.asfortranarray(values.numpy()))
    return path / "bank.npz"


def compressed(path: Path, values: torch.Tensor) -> Path:
    np.savez_compressed(path / "bank.npz", particles=values.numpy())
    return path / "bank.npz"


def safetensors(path: Path, values: torch.Tensor) -> Path:
    save_file({"particles": values}, path / "bank.safetensors")
    return path / "bank.safetensors"


FILES = [npy, fortran, npz, fortran_npz, compressed, safetensors]
IN_MEMORY = {"tensor": lambda _, values: values, "array": lambda _, values: values.numpy()}
FORMATS = {write.__name__: write for write in FILES} | IN_MEMORY
OUTPUTS = {"probabilities": P, "log_probabilities": LOG_P, "logits": LOG_P + 2}
every_format = pytest.mark.parametrize("write", FORMATS.values(), ids=FORMATS)
every_file = pytest.mark.parametrize("write", FILES)


@every_format
@pytest.mark.parametrize("outputs", OUTPUTS)
def test_particles_come_back_as_they_were_written(write, outputs, tmp_path):
    bank = ParticleBank(write(tmp_path, OUTPUTS[outputs]), X, outputs=outputs)
    assert bank.shape == (S, N, K)
    torch.testing.assert_close(bank(X, S), LOG_P, rtol=1e-5, atol=1e-5)


@every_format
def test_any_rows_of_any_samples_can_be_read(write, tmp_path):
    bank = ParticleBank(write(tmp_path, P), X)
    order = torch.tensor([5, 0, 0, 3])
    torch.testing.assert_close(bank(X[order], S), LOG_P[:, order], rtol=1e-5, atol=1e-5)
    some = bank(X[order], 2)
    which = (some[:, None] - LOG_P[:, order]).abs().amax((-1, -2)).min(1)
    assert float(which.values.max()) < 1e-5
    assert len(set(which.indices.tolist())) == 2


@pytest.mark.parametrize("write", [npy, fortran, npz, fortran_npz])
def test_files_that_are_not_compressed_are_mapped_not_read(write, tmp_path):
    assert isinstance(ParticleBank(write(tmp_path, P))._array, np.memmap)


@pytest.mark.parametrize("write", [npz, compressed, safetensors])
def test_a_path_may_be_a_string(write, tmp_path):
    bank = ParticleBank(str(write(tmp_path, P)), X)
    torch.testing.assert_close(bank(X, S), LOG_P, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_one_of_several_arrays_is_chosen_by_its_key(suffix, tmp_path):
    path = tmp_path / f"bank.{suffix}"
    arrays = {"draws": P, "other": P.flip(2).contiguous()}
    if suffix == "npz":
        np.savez(path, **{name: values.numpy() for name, values in arrays.items()})
    else:
        save_file(arrays, path)
    torch.testing.assert_close(ParticleBank(path, X, key="draws")(X, S), LOG_P, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ParticleBank(path, X, key="other")(X, S), LOG_P.flip(2), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match=r"holds the arrays draws, other; say which one with key=, got None"):
        ParticleBank(path, X)
    with pytest.raises(ValueError, match=r"holds the arrays draws, other; say which one with key=, got 'draw'"):
        ParticleBank(path, X, key="draw")


@pytest.mark.parametrize("write", [*FORMATS.values()], ids=FORMATS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_other_precisions_are_read_and_stay_finite_at_exact_zeros(write, dtype, tmp_path):
    values = P.to(dtype)
    values[:, 0] = torch.tensor([1.0, 0.0, 0.0])
    particles = ParticleBank(write(tmp_path, values), X)(X, S)
    assert bool(torch.isfinite(particles).all())
    torch.testing.assert_close(particles[:, 1:].float(), LOG_P[:, 1:], rtol=0, atol=5e-3)


def test_bfloat16_which_numpy_does_not_know_is_read_or_refused(tmp_path):
    try:
        particles = ParticleBank(safetensors(tmp_path, P.bfloat16()), X)(X, S)
    except ValueError:
        return
    torch.testing.assert_close(particles.float(), LOG_P, rtol=0, atol=3e-2)


@pytest.mark.parametrize("write", [npy, npz, compressed, safetensors, IN_MEMORY["array"]])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_votes_of_hard_classifiers_are_numbers_too(write, dtype, tmp_path):
    votes = torch.nn.functional.one_hot(LOG_P.argmax(-1), K)
    particles = ParticleBank(write(tmp_path, votes.to(dtype)), X)(X, S)
    assert particles.is_floating_point()
    torch.testing.assert_close(particles.exp(), votes.to(particles.dtype), rtol=0, atol=1e-6)


# --- which particles belong to which inputs --------------------------------------------------------------------------


@laws
@given(st.lists(st.integers(0, N - 1), min_size=1, max_size=12))
def test_inputs_are_recognised_by_their_content(order):
    torch.testing.assert_close(ParticleBank(P, X)(X[order], S), LOG_P[:, order], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("known", [X, X.numpy(), X.double(), X.numpy().astype(np.float64)])
@pytest.mark.parametrize("asked", [X, X.double()], ids=["float32", "float64"])
def test_precision_and_container_of_the_inputs_do_not_matter(known, asked):
    torch.testing.assert_close(ParticleBank(P, known)(asked, S), LOG_P.to(torch.float32), rtol=1e-5, atol=1e-5)


def test_images_are_recognised_too():
    images = torch.rand(N, 1, 4, 4)
    torch.testing.assert_close(ParticleBank(P, images)(images.flip(0), S), LOG_P.flip(1), rtol=1e-5, atol=1e-5)


def test_read_only_inputs_are_taken_without_a_warning():
    inputs = X.numpy().copy()
    inputs.flags.writeable = False
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        bank = ParticleBank(P, inputs)
    finally:
        torch.set_warn_always(always)
    torch.testing.assert_close(bank(X, S), LOG_P, rtol=1e-5, atol=1e-5)


def test_a_bank_without_inputs_takes_those_it_is_bound_to():
    bank = ParticleBank(P)
    with pytest.raises(ValueError, match="does not know its inputs"):
        bank(X, S)
    bound = bank.bind(iter([X[:4], X[4:]]))
    torch.testing.assert_close(bound(X.flip(0), S), LOG_P.flip(1), rtol=1e-5, atol=1e-5)


def test_a_bank_with_inputs_of_its_own_keeps_them():
    bank = ParticleBank(P, X).bind([X.flip(0)])
    torch.testing.assert_close(bank(X, S), LOG_P, rtol=1e-5, atol=1e-5)


def test_unknown_inputs_are_refused():
    x = X.clone()
    x[1:3] += 1e-3
    with pytest.raises(ValueError, match="for its own 6 inputs only; 2 of 6 inputs are others"):
        ParticleBank(P, X)(x, S)


@pytest.mark.parametrize("count", [5, 7])
def test_another_number_of_inputs_is_refused(count):
    inputs = torch.randn(count, 2)
    message = rf"got {count} inputs for particles of shape \(4, 6, 3\)"
    with pytest.raises(ValueError, match=message):
        ParticleBank(P, inputs)
    bank = ParticleBank(P)
    with pytest.raises(ValueError, match=message):
        bank.bind([inputs])
    torch.testing.assert_close(bank.bind([X])(X, S), LOG_P, rtol=1e-5, atol=1e-5)  # the failure left no trace


def test_inputs_without_an_axis_of_features_are_refused():
    with pytest.raises(ValueError, match="inputs"):
        ParticleBank(P, X[:, 0])


# --- what the values may be ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("floor", [1e-12, 1e-4])
def test_exact_zeros_are_raised_to_the_floor(floor):
    certain = torch.tensor([[[1.0, 0.0], [0.5, 0.5]]], dtype=torch.float64)
    particles = ParticleBank(certain, X[:2], floor=floor)(X[:2], 1)
    expected = torch.tensor([[[1 / (1 + floor), floor / (1 + floor)], [0.5, 0.5]]], dtype=torch.float64)
    torch.testing.assert_close(particles.exp(), expected, rtol=1e-9, atol=0)


def test_zeros_among_log_probabilities_are_raised_to_the_floor_too():
    """Where particles of minus infinity would make every forward KL infinite."""
    certain = torch.tensor([[[1.0, 0.0], [0.5, 0.5]]]).log()
    particles = ParticleBank(certain, X[:2], outputs="log_probabilities")(X[:2], 1)
    assert bool(torch.isfinite(particles).all())


def with_value(value: float, outputs: str = "probabilities") -> torch.Tensor:
    values = OUTPUTS[outputs].clone()
    values[2, 4, 1] = value
    return values


REFUSED = {
    "binary, two axes": (P[..., 0], "probabilities", r"three axes \(S, B, K\).*got shape \(4, 6\)"),
    "four axes": (P[None], "probabilities", "three axes"),
    "one class": (torch.ones(S, N, 1), "probabilities", r"at least two classes .*stack \[1 - p, p\]"),
    "no samples": (P[:0], "probabilities", r"three axes .*got shape \(0, 6, 3\)"),
    "no inputs": (P[:, :0], "probabilities", r"three axes .*got shape \(4, 0, 3\)"),
    "NaN": (with_value(torch.nan), "probabilities", "must be finite; got NaN or infinite values"),
    "NaN logits": (with_value(torch.nan, "logits"), "logits", "must be finite; got NaN or infinite values"),
    "infinite logits": (with_value(torch.inf, "logits"), "logits", "must be finite; got NaN or infinite values"),
    "NaN logs": (with_value(torch.nan, "log_probabilities"), "log_probabilities", "NaN or infinite"),
    "off the simplex": (with_value(0.999) + 0.1, "probabilities", "must lie on the simplex"),
    "logits": (OUTPUTS["logits"], "probabilities", 'If these are logits, say outputs="logits"'),
    "probabilities as logits": (P, "logits", "announced as logits but lie on the simplex"),
    "probabilities as logs": (P, "log_probabilities", "probabilities"),
}


@pytest.mark.parametrize(("values", "outputs", "message"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("write", [npy, IN_MEMORY["tensor"]], ids=["npy", "tensor"])
def test_what_are_not_particles_is_refused(write, values, outputs, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        ParticleBank(write(tmp_path, values), outputs=outputs)


def test_every_row_of_a_large_bank_is_checked():
    values = np.full((1, 10_000, 2), 0.5, dtype=np.float32)
    assert ParticleBank(values).shape == (1, 10_000, 2)
    values[0, -1, 0] = np.nan
    with pytest.raises(ValueError, match="must be finite"):
        ParticleBank(values)


@pytest.mark.parametrize("dtype", ["U3", "complex64", "bool"])
def test_an_array_of_what_are_not_numbers_is_refused(dtype):
    with pytest.raises(ValueError, match="must hold numbers; got type"):
        ParticleBank(np.ones((S, N, K)).astype(dtype))


@pytest.mark.parametrize("save", [np.save, np.savez, np.savez_compressed])
@pytest.mark.parametrize("dtype", ["U3", "complex64"])
def test_a_file_of_what_are_not_numbers_is_refused(save, dtype, tmp_path):
    path = tmp_path / ("bank.npy" if save is np.save else "bank.npz")
    save(path, np.ones((S, N, K)).astype(dtype))
    with pytest.raises(ValueError, match="must hold numbers"):
        ParticleBank(path)


# --- files that cannot be read ---------------------------------------------------------------------------------------


@every_file
@pytest.mark.parametrize("part", [0.0, 0.01, 0.15, 0.5, 0.95, 0.9999])
def test_a_file_that_was_cut_short_is_refused_by_name(write, part, tmp_path):
    path = write(tmp_path, P)
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    with pytest.raises(ValueError, match=rf"{path.name}.*cut short"):
        ParticleBank(path)


@every_file
def test_a_file_of_something_else_is_refused(write, tmp_path):
    path = write(tmp_path, P)
    path.write_bytes(b"\x00garbage" * 100)
    with pytest.raises(ValueError, match=path.name):
        ParticleBank(path)


class Trap:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


def object_array(marks: Path) -> np.ndarray:
    array = np.empty(S * N * K, dtype=object)
    array[:] = [Trap(marks / f"mark {number}") for number in range(S * N * K)]
    return array.reshape(S, N, K)


@pytest.mark.parametrize("save", [np.save, np.savez, np.savez_compressed])
def test_pickled_arrays_are_refused_unread(save, tmp_path):
    # (If an array of objects were mapped from a stored archive, its elements would be wild pointers.)
    path = tmp_path / ("bank.npy" if save is np.save else "bank.npz")
    save(path, object_array(tmp_path))
    with pytest.raises(ValueError, match=r"(?i)object|pickle"):
        ParticleBank(path)
    assert list(tmp_path.iterdir()) == [path]


def test_a_plain_pickle_is_refused_unread(tmp_path):
    path = tmp_path / "bank.npy"
    path.write_bytes(pickle.dumps(Trap(tmp_path / "mark")))
    with pytest.raises(ValueError, match="pickle"):
        ParticleBank(path)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("name", ["bank.npy", "bank.npz", "bank.safetensors"])
def test_a_missing_file_is_refused(name, tmp_path):
    with pytest.raises(ValueError, match=rf"there is no file .*{name}"):
        ParticleBank(tmp_path / name)


@pytest.mark.parametrize("name", ["bank.csv", "bank.pkl", "bank.pt", "bank"])
def test_an_unknown_kind_of_file_is_refused(name, tmp_path):
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(ValueError, match=rf"ends in \.npy, \.npz, \.safetensors; got '{name}'"):
        ParticleBank(tmp_path / name)
