"""Trivial detectors by hand, and the law that both sides of the median are far from it."""

import pytest
import torch

from opu.evaluation import trivial

FEATURES = {"mean_intensity", "norm", "negative_part"}


def test_statistics_by_hand():
    x = torch.tensor([[3.0, -4.0], [0.0, 0.0], [-1.0, -2.0]])
    assert trivial.mean_intensity(x).tolist() == [-0.5, 0.0, -1.5]
    assert trivial.norm(x).tolist() == pytest.approx([5.0, 0.0, 5**0.5])
    assert trivial.negative_part(x).tolist() == [4.0, 0.0, 3.0]


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 1, 3, 4), (2, 12)])
def test_statistics_of_images_are_those_of_their_pixels(shape):
    x = torch.randn(shape)
    for statistic in (trivial.mean_intensity, trivial.norm, trivial.negative_part):
        torch.testing.assert_close(statistic(x), statistic(x.reshape(2, 12)))


def test_the_border_of_a_digit_is_four_pixels_wide():
    outside, inside = torch.zeros(1, 28, 28), torch.zeros(1, 28, 28)
    outside[:, 3, 14] = 1.0  # the innermost row of the border
    inside[:, 4, 14] = 1.0
    num_border = 28 * 28 - 20 * 20
    assert trivial.border_ink(outside).item() == pytest.approx(1 / num_border)
    assert trivial.border_ink(inside).item() == 0.0
    frame = torch.ones(1, 28, 28)
    frame[:, 4:24, 4:24] = 0.0
    assert trivial.border_ink(frame).item() == pytest.approx(1.0)
    for row, column in [(0, 0), (27, 27), (24, 10), (10, 24), (10, 3)]:
        dot = torch.zeros(1, 28, 28)
        dot[:, row, column] = 1.0
        assert trivial.border_ink(dot).item() == pytest.approx(1 / num_border)


def test_the_border_of_a_small_or_oblong_image():
    x = torch.zeros(1, 3, 5)
    x[0, 1, 1:4] = 1.0  # all that is not border
    assert trivial.border_ink(x).item() == 0.0
    assert trivial.border_ink(1 - x).item() == 1.0
    oblong = torch.zeros(1, 14, 28)  # a seventh of each side: two rows, four columns
    oblong[:, 2:12, 4:24] = 1.0
    assert trivial.border_ink(oblong).item() == 0.0
    assert trivial.border_ink(1 - oblong).item() == 1.0


def test_channels_share_one_border():
    x = torch.randn(3, 2, 14, 14)
    each = torch.stack([trivial.border_ink(x[:, c]) for c in range(2)]).mean(0)
    torch.testing.assert_close(trivial.border_ink(x), each)
    torch.testing.assert_close(trivial.border_ink(x[:, :1]), trivial.border_ink(x[:, 0]))


def test_only_images_have_a_border():
    assert trivial.detectors(torch.zeros(2, 5)).keys() == FEATURES
    assert trivial.detectors(torch.zeros(2, 5, 5)).keys() == FEATURES | {"border_ink"}
    assert trivial.detectors(torch.zeros(2, 1, 5, 5)).keys() == FEATURES | {"border_ink"}
    assert trivial.trivial_scores(torch.zeros(2, 5), torch.zeros(3, 5)).keys() == FEATURES


def test_scores_by_hand():
    calibration = torch.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])  # the median of the mean is 2
    scores = trivial.trivial_scores(torch.tensor([[2.0, 2.0], [0.0, 1.0], [5.0, 5.0]]), calibration)
    assert scores["mean_intensity"].tolist() == [0.0, 1.5, 3.0]
    assert scores["norm"].tolist() == pytest.approx([0.0, 8**0.5 - 1, 50**0.5 - 8**0.5])
    assert scores["negative_part"].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("name", sorted(FEATURES | {"border_ink"}))
def test_far_on_either_side_of_the_median_scores_high(name):
    calibration = -0.5 + 0.2 * torch.rand(101, 8, 8)  # dim images on [-1, 1]: every statistic has room on both sides
    ood = torch.stack([torch.full((8, 8), value) for value in (-0.4, -1.0, 1.0, 0.0)])
    usual = trivial.trivial_scores(calibration, calibration)[name].max()
    scores = trivial.trivial_scores(ood, calibration)[name]
    below, above = (scores[1], scores[2]) if name != "norm" else (scores[3], scores[2])
    assert scores[0] < below
    assert below > 2 * usual
    assert above > 2 * usual


def test_mirror_images_about_the_median_tie():
    calibration = torch.tensor([[-1.0], [0.0], [1.0]])
    scores = trivial.trivial_scores(torch.tensor([[-7.0], [7.0]]), calibration)["mean_intensity"]
    assert scores[0] == scores[1] == 7.0
