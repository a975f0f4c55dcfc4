"""Preparations: hand-computed answers from made-up files, and the real sets' shapes and counts."""

import gzip

import numpy as np
import pytest
import torch

from reproduction.data import DATASETS, DataFile, data_file, images, locate
from reproduction.data.arrays import read_idx
from reproduction.data.images import (
    emnist_balanced,
    emnist_bymerge47,
    emnist_letters,
    mnist,
    noise,
    omniglot,
    photographs,
    semeion,
    shifted,
)
from reproduction.data.local import checksum
from tests.reproduction.data.made_up import need, png, semeion_row, write, write_pair, zipped

BALANCED = "emnist/emnist-balanced-{}-images-idx3-ubyte.gz"
BYMERGE = "emnist/emnist-bymerge-test-images-idx3-ubyte.gz"
PART = "emnist/emnist-balanced-train-images-rows-103680-112799-idx3-ubyte.gz"


def dots(*places):
    """An image for each (row, column, value), black otherwise."""
    made = np.zeros((len(places), 28, 28), dtype=np.uint8)
    for number, (row, column, value) in enumerate(places):
        made[number, row, column] = value
    return made


def test_mnist_is_scaled(tmp_path):
    write_pair(tmp_path, "mnist/train-images-idx3-ubyte.gz", dots((2, 5, 255), (27, 0, 51)), [3, 9])
    write_pair(tmp_path, "mnist/t10k-images-idx3-ubyte.gz", dots((0, 0, 1)), [4])
    got = mnist("train", tmp_path)
    assert got.name == "mnist"
    assert got.labels.tolist() == [3, 9]
    assert got.labels.dtype == torch.int64
    expected = torch.full((2, 1, 28, 28), -1.0)
    expected[0, 0, 2, 5], expected[1, 0, 27, 0] = 1.0, -0.6
    torch.testing.assert_close(got.images, expected)
    assert got.images.is_contiguous()
    assert mnist("test", tmp_path).labels.tolist() == [4]


def test_images_and_labels_must_agree(tmp_path):
    path = "mnist/train-images-idx3-ubyte.gz"
    write_pair(tmp_path, path, dots((0, 0, 1)), [3, 9])
    with pytest.raises(ValueError, match=r"one image of 28 x 28 for each of the 2 labels .* got shape \(1, 28, 28\)"):
        mnist("train", tmp_path)
    write_pair(tmp_path, path, np.zeros((2, 28, 27)), [3, 9])
    with pytest.raises(ValueError, match=r"got shape \(2, 28, 27\)"):
        mnist("train", tmp_path)


def test_unknown_names_are_refused(tmp_path):
    for read in (mnist, emnist_balanced, emnist_bymerge47):
        with pytest.raises(ValueError, match="split must be train or test; got 'tset'"):
            read("tset", tmp_path)
    with pytest.raises(ValueError, match="part must be evaluation or background"):
        omniglot("test", folder=tmp_path)
    for load in (lambda: omniglot(preparation="inverted"), lambda: semeion("inverted")):
        with pytest.raises(ValueError, match="preparation must be as_released or matched; got 'inverted'"):
            load()


def accept(monkeypatch, folder):
    """Let the catalogue take the made-up files of a folder for EMNIST Balanced."""
    files = []
    for file in DATASETS["emnist-balanced"].files:
        path = locate(file, folder)
        files.append(DataFile(file.path, (checksum(path, "sha256"),), sources=file.sources) if path else file)
    known = DATASETS["emnist-balanced"]
    made = type(known)(known.name, known.description, known.licence, known.citation, tuple(files))
    monkeypatch.setitem(DATASETS, "emnist-balanced", made)


def test_emnist_balanced_is_upright(tmp_path, monkeypatch):
    for split in ("train", "test"):
        write_pair(tmp_path, BALANCED.format(split), dots((2, 5, 255)), [46])
    accept(monkeypatch, tmp_path)
    for split in ("train", "test"):
        got = emnist_balanced(split, tmp_path)
        assert got.name == "emnist-balanced"
        assert got.labels.tolist() == [46]
        assert got.images[0, 0, 5, 2] == 1
        assert got.images.sum() == 1 - 783


def test_emnist_balanced_takes_nothing_else(tmp_path):
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte.gz is not here.*opu data fetch emnist-balanced"):
        emnist_balanced("train", tmp_path)
    write(tmp_path, PART, b"a part")
    with pytest.raises(
        ValueError, match=r"only a part of it is here, .*rows-103680.*fetch emnist-balanced`; .* emnist-bymerge47"
    ):
        emnist_balanced("train", tmp_path)
    with pytest.raises(ValueError, match=r"test-images-idx3-ubyte\.gz is not here"):
        emnist_balanced("test", tmp_path)
    write_pair(tmp_path, BALANCED.format("train"), dots((2, 5, 255)), [46])
    with pytest.raises(ValueError, match="bytes, but 28,207,740 are right"):
        emnist_balanced("train", tmp_path)


def test_the_split_of_bymerge(tmp_path, monkeypatch):
    labels = np.array([0] * 7 + [1] * 5 + [0, 1] * 4)
    train, test = images.split_rows(labels, 3)
    assert sorted([*train, *test]) == list(range(len(labels)))
    assert np.bincount(labels[test]).tolist() == [3, 3]
    assert (np.diff(test) > 0).all()
    assert (np.diff(train) > 0).all()
    # As it is documented: one source, classes in order, the first rows of each shuffle.
    source = np.random.default_rng(47)
    expected = [source.permutation(np.flatnonzero(labels == each))[:3] for each in (0, 1)]
    assert sorted(np.concatenate(expected)) == test.tolist()
    with pytest.raises(ValueError, match="every class needs more than 9 images; class 1 has 9"):
        images.split_rows(labels, 9)

    monkeypatch.setattr(images, "TEST_IMAGES_PER_CLASS", 3)
    write_pair(tmp_path, BYMERGE, dots(*[(row, 27 - row, 255) for row in range(len(labels))]), labels)
    for split, rows in (("train", train), ("test", test)):
        got = emnist_bymerge47(split, tmp_path)
        assert got.name == "emnist-bymerge47"
        assert got.labels.tolist() == labels[rows].tolist()
        # Image number r has its dot at (27 - r, r) when it stands upright.
        assert got.images[:, 0].amax(2).argmax(1).tolist() == (27 - rows).tolist()


def test_letters(tmp_path):
    labels = [3, 10, 46, 9, 11]
    write_pair(tmp_path, BYMERGE, dots(*[(0, row, 255) for row in range(5)]), labels)
    got = emnist_letters(folder=tmp_path)
    order = np.random.default_rng(47).permutation([1, 2, 4])
    assert got.labels.tolist() == [labels[row] for row in order]
    assert got.images[:, 0, :, 0].argmax(1).tolist() == order.tolist()
    assert emnist_letters(2, tmp_path).labels.tolist() == got.labels[:2].tolist()
    for count in (0, 4):
        with pytest.raises(ValueError, match=f"between 1 and the number of letters, 3; got {count}"):
            emnist_letters(count, tmp_path)


def shrinking_weights():
    """Antialiased bilinear from 105 to 28 pixels: a triangle as wide as the step, over the pixels there are."""
    step = 105 / 28
    centres = (np.arange(28) + 0.5) * step
    weights = np.clip(1 - np.abs(np.arange(105) + 0.5 - centres[:, None]) / step, 0, None)
    return weights / weights.sum(1, keepdims=True)


@pytest.mark.parametrize("part", ["evaluation", "background"])
def test_omniglot(tmp_path, part):
    is_white = np.random.default_rng(0).random((3, 105, 105)) > 0.1
    is_white[0] = True
    members = {f"x/A/character0{number}/1.png": png(each) for number, each in enumerate(is_white)}
    write(tmp_path, f"omniglot/images_{part}.zip", zipped(members))
    released, matched = (omniglot(part, each, tmp_path) for each in ("as_released", "matched"))
    assert released.name == f"omniglot-{part}-as_released"
    assert released.labels.tolist() == [0, 1, 2]
    assert (released.images[0] == 1).all()  # white paper
    weights = shrinking_weights()
    expected = 2 * weights @ is_white @ weights.T - 1
    torch.testing.assert_close(released.images[:, 0], torch.tensor(expected, dtype=torch.float32), atol=1e-5, rtol=0)
    torch.testing.assert_close(matched.images, -released.images, atol=0, rtol=0)
    assert released.images.abs().max() <= 1


def test_semeion(tmp_path):
    full, top = np.ones((16, 16)), np.zeros((16, 16))
    top[0] = 1
    rows = (semeion_row(full, 8) + semeion_row(top, 1)).encode()
    write(tmp_path, "semeion/semeion.data.gz", gzip.compress(rows))
    released, matched = (semeion(each, tmp_path) for each in ("as_released", "matched"))
    assert matched.name == "semeion-matched"
    assert released.labels.tolist() == [8, 1]
    assert (released.images[0] == 1).all()
    # The middle of row i lies at (i + 1/2) 16 / 28 - 1/2 in the small image: 5/14 and 13/14 from its first row.
    column = torch.tensor([1, 2 * 9 / 14 - 1, 2 / 14 - 1] + [-1] * 25)
    torch.testing.assert_close(released.images[1, 0], column[:, None].expand(28, 28), atol=1e-6, rtol=0)
    box = torch.full((28, 28), -1.0)
    box[4:24, 4:24] = 1
    torch.testing.assert_close(matched.images[0, 0], box, atol=0, rtol=0)
    # 16 to 20: the middle of row i lies at 0.8 i - 0.1, so the ink of the first row is 1, then 0.3, then none.
    torch.testing.assert_close(
        matched.images[1, 0, :7, 10], torch.tensor([-1, -1, -1, -1, 1, -0.4, -1]), atol=1e-6, rtol=0
    )


@pytest.mark.parametrize("load", [lambda: mnist("test"), semeion])
def test_a_file_that_only_has_the_right_name_is_not_read_by_default(load, tmp_path, monkeypatch):
    monkeypatch.setenv("OPU_DATA", str(tmp_path))
    for path in ("mnist/t10k-images-idx3-ubyte.gz", "semeion/semeion.data"):
        write(tmp_path, path, b"something else")
    with pytest.raises(ValueError, match=r"has 14 bytes, but .* are right; it is damaged"):
        load()


@pytest.mark.parametrize("make", [photographs, noise])
def test_made_images_are_like_those_of_a_file(make):
    made = make(60, seed=3)
    assert made.shape == (60, 1, 28, 28)
    assert made.dtype == torch.float32
    assert made.min() >= -1
    assert made.max() <= 1
    assert torch.equal(made, make(60, seed=3))
    assert not torch.equal(made, make(60, seed=4))


def test_photographs():
    made = photographs(60, seed=3)
    # Neighbouring pixels of a photograph are alike, those of noise are not.
    assert float((made[..., 1:] - made[..., :-1]).abs().mean()) < 0.3 * float(
        noise(60, seed=0).diff(dim=-1).abs().mean()
    )
    with pytest.raises(ValueError, match="count must be at least 1; got 0"):
        photographs(0, seed=0)


def test_noise():
    made = noise(500, seed=3)
    assert abs(made.mean()) < 0.01
    assert abs(made.var() - 1 / 3) < 0.01
    state = torch.get_rng_state()
    noise(1, seed=0)
    assert torch.equal(state, torch.get_rng_state())
    with pytest.raises(ValueError, match="count must be at least 1; got 0"):
        noise(0, seed=0)


def test_shifted_images_wrap():
    image = torch.zeros(1, 1, 28, 28)
    image[0, 0, 25, 3] = 1
    got = shifted(image)
    assert got[0, 0, 5, 11] == 1
    assert got.sum() == 1


def assert_images(made, count):
    assert made.images.shape == (count, 1, 28, 28)
    assert made.images.dtype == torch.float32
    assert made.images.min() >= -1
    assert made.images.max() <= 1


def test_the_real_mnist(data_folder):
    need(data_folder, "mnist/train-images-idx3-ubyte.gz")
    train, test = mnist("train", data_folder), mnist("test", data_folder)
    assert_images(train, 60_000)
    assert_images(test, 10_000)
    assert train.labels.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert ((train.images + 1) / 2).mean() == pytest.approx(0.1307, abs=1e-4)


def test_the_real_bymerge(data_folder):
    need(data_folder, BYMERGE)
    labels = read_idx(data_folder / BYMERGE.replace("images-idx3", "labels-idx1"), num_axes=1).astype(np.int64)
    train, _ = images.split_rows(labels, images.TEST_IMAGES_PER_CLASS)
    assert len(train) == 97_523
    assert np.bincount(labels[train]).min() == 15
    assert (labels >= images.FIRST_LETTER).sum() == 58_796
    test = emnist_bymerge47("test", data_folder)
    assert_images(test, 18_800)
    assert test.labels.bincount().tolist() == [400] * 47
    # A digit 1 is a tall stroke: upright, its ink spreads over rows more than over columns.
    ones = test.images[test.labels == 1][:, 0] + 1
    assert (ones.amax(2) > 1).sum() > 1.5 * (ones.amax(1) > 1).sum()


def test_the_real_balanced_is_whole_or_refused(data_folder):
    need(data_folder, PART)
    if locate(data_file(BALANCED.format("train")), data_folder):
        assert_images(emnist_balanced("train", data_folder), 112_800)
    else:
        with pytest.raises(ValueError, match="only a part of it is here"):
            emnist_balanced("train", data_folder)


def test_the_real_omniglot(data_folder):
    need(data_folder, "omniglot/images_evaluation.zip")
    released = omniglot("evaluation", "as_released", data_folder)
    assert_images(released, 13_180)
    assert released.labels.bincount().tolist() == [20] * 659
    assert released.images.mean() > 0.8  # mostly white paper


def test_the_real_semeion(data_folder):
    need(data_folder, "semeion/semeion.data")
    released, matched = (semeion(each, data_folder) for each in ("as_released", "matched"))
    assert_images(released, 1593)
    assert released.labels.bincount().tolist() == [161, 162, 159, 159, 161, 159, 161, 158, 155, 158]
    assert (matched.images[:, :, :4] == -1).all()
    # Digits fill the frame as released: each image has ink on all four sides or nearly so.
    assert (released.images[:, 0, 0].amax(1) > 0).float().mean() > 0.9
