"""Transformations of images and feature vectors keep their laws."""

import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from opu.augment import augment, chain, default_transform, features, images, one_of
from opu.augment.features import noise, permuted_columns, scaled_about_centre
from opu.augment.images import affine, intensity, pixel_noise, shuffled_patches, smooth_noise
from opu.augment.transforms import mixup

laws = settings(deadline=None, max_examples=25, derandomize=True)
seeds = st.integers(0, 2**32 - 1)

OF_IMAGES = {
    "mixup": mixup,
    "affine": affine,
    "shuffled patches": shuffled_patches,
    "pixel noise": pixel_noise,
    "intensity": intensity,
    "smooth noise": smooth_noise,
    "images": images.default(),
}
OF_FEATURES = {
    "noise": noise,
    "mixup of features": mixup,
    "permuted columns": permuted_columns,
    "scaled about the centre": scaled_about_centre,
    "features": features.default(),
}
IMAGE_SHAPES = [(6, 8, 8), (4, 3, 5, 11), (1, 1, 28, 28), (3, 3, 3)]
FEATURE_SHAPES = [(6, 4), (1, 3), (20, 1)]
TABLE = {name: (t, IMAGE_SHAPES) for name, t in OF_IMAGES.items()}
TABLE |= {name: (t, FEATURE_SHAPES) for name, t in OF_FEATURES.items()}
every = pytest.mark.parametrize(("transform", "shapes"), TABLE.values(), ids=TABLE)
every_image = pytest.mark.parametrize("transform", OF_IMAGES.values(), ids=OF_IMAGES)
every_feature = pytest.mark.parametrize("transform", OF_FEATURES.values(), ids=OF_FEATURES)


def batch(shape, seed: int = 0, dtype=torch.float32) -> Tensor:
    return 3 * torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype) - 1


# --- laws of every transformation ------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shape_type_and_device_stay_and_values_are_finite(transform, shapes, dtype):
    for shape in shapes:
        x = batch(shape, dtype=dtype)
        before = x.clone()
        y = transform(x, None)
        assert (y.shape, y.dtype, y.device) == (x.shape, x.dtype, x.device)
        assert bool(torch.isfinite(y).all())
        assert torch.equal(x, before)


@every
def test_a_seed_gives_the_same_result_and_leaves_the_global_state_alone(transform, shapes):
    for x in map(batch, shapes):
        state = torch.get_rng_state()
        first = augment(x, transform, seed=3)
        assert torch.equal(torch.get_rng_state(), state)
        torch.rand(7)
        assert torch.equal(augment(x, transform, seed=3), first)


@every
def test_without_a_seed_the_global_state_decides_and_moves(transform, shapes):
    for x in map(batch, shapes):
        torch.manual_seed(11)
        first = augment(x, transform)
        moved = torch.get_rng_state()
        torch.manual_seed(11)
        assert not torch.equal(torch.get_rng_state(), moved)
        assert torch.equal(augment(x, transform), first)


@every
@pytest.mark.parametrize(("scale", "shift"), [(0.25, 5.0), (100.0, -30.0)])
def test_units_do_not_matter(transform, shapes, scale, shift):
    """t(a x + b) = a t(x) + b: pixels may be 0..1, -1..1 or 0..255, columns in metres or miles."""
    for shape in shapes:
        x = batch(shape, dtype=torch.float64)
        expected = scale * augment(x, transform, seed=5) + shift
        torch.testing.assert_close(augment(scale * x + shift, transform, seed=5), expected, rtol=1e-9, atol=1e-7)


@every
def test_a_constant_batch_stays_as_it_is(transform, shapes):
    for shape in shapes:
        x = torch.full(shape, 0.5)
        torch.testing.assert_close(transform(x, None), x, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("transform", "shape"),
    [(t, (8, 12, 12)) for name, t in OF_IMAGES.items() if name != "mixup"] + [(noise, (8, 5))],
)
def test_equal_rows_are_changed_each_in_its_own_way(transform, shape):
    x = batch((1, *shape[1:])).expand(shape).contiguous()
    if transform is noise:
        x = torch.cat([x, x + 1])  # a column that never varies has no scale
    y = transform(x, torch.Generator().manual_seed(1))[: shape[0]].flatten(1)
    assert float(torch.cdist(y, y).fill_diagonal_(1.0).min()) > 1e-3


@laws
@given(seeds)
def test_different_seeds_give_different_results(seed):
    for x in (batch((6, 8, 8)), batch((6, 4))):
        assert not torch.equal(augment(x, seed=seed), augment(x, seed=seed + 1))


# --- images ----------------------------------------------------------------------------------------------------------


@every_image
def test_pixels_stay_within_the_range_of_the_batch(transform):
    for x in map(batch, IMAGE_SHAPES):
        y = transform(x, None)
        assert float(y.min()) >= float(x.min()) - 1e-5
        assert float(y.max()) <= float(x.max()) + 1e-5


@pytest.mark.parametrize(
    "transform", [affine, shuffled_patches, pixel_noise, intensity, smooth_noise, images.default()]
)
def test_an_axis_of_one_channel_changes_nothing(transform):
    x = batch((5, 9, 8))
    plain, with_channel = augment(x, transform, seed=2), augment(x.unsqueeze(1), transform, seed=2)
    torch.testing.assert_close(with_channel.squeeze(1), plain)


def as_points(x: Tensor) -> Tensor:
    """(B, C, H, W) -> the pixels of each image in a fixed order, each with all its channels."""
    points = x.flatten(2).transpose(1, 2)
    for channel in reversed(range(points.shape[-1])):
        order = points[..., channel].argsort(dim=1, stable=True)
        points = points.gather(1, order.unsqueeze(-1).expand_as(points))
    return points


@laws
@given(seeds, st.sampled_from([(4, 1, 8, 8), (4, 3, 8, 8), (4, 2, 7, 9), (4, 1, 28, 28), (3, 3, 5, 4), (3, 1, 1, 6)]))
def test_shuffled_patches_keep_every_pixel_with_its_channels(seed, shape):
    x = batch(shape)
    y = augment(x, shuffled_patches, seed=seed)
    assert torch.equal(as_points(y), as_points(x))
    height, width = shape[-2] // 2 * 2, shape[-1] // 2 * 2
    assert torch.equal(y[..., height:, :], x[..., height:, :])  # the border that does not divide
    assert torch.equal(y[..., width:], x[..., width:])


@laws
@given(seeds)
def test_shuffled_patches_move_as_wholes(seed):
    x = batch((6, 2, 8, 8))
    y = augment(x, shuffled_patches, seed=seed)
    # A patch of 2 x 2 or 4 x 4 pixels is made of blocks of 2 x 2.
    blocks = [z.unfold(2, 2, 2).unfold(3, 2, 2).permute(0, 2, 3, 1, 4, 5).reshape(6, 16, -1) for z in (x, y)]
    nearest, source = torch.cdist(blocks[1], blocks[0]).min(-1)
    assert float(nearest.max()) < 1e-6
    assert all(sorted(row) == list(range(16)) for row in source.tolist())


def test_shuffled_patches_use_both_grids_and_leave_few_images_alone():
    x = batch((400, 8, 8))
    y = augment(x, shuffled_patches, seed=0)
    coarse = torch.stack([y[:, 4 * i : 4 * i + 4, 4 * j : 4 * j + 4] for i in (0, 1) for j in (0, 1)], 1).flatten(2)
    origin = torch.stack([x[:, 4 * i : 4 * i + 4, 4 * j : 4 * j + 4] for i in (0, 1) for j in (0, 1)], 1).flatten(2)
    in_quarters = (torch.cdist(coarse, origin).min(-1).values < 1e-5).all(1)
    assert stats.binomtest(int(in_quarters.sum()), 400, 0.5).pvalue > 1e-4
    unchanged = (y == x).flatten(1).all(1)
    assert stats.binomtest(int(unchanged.sum()), 400, 0.5 / math.factorial(4)).pvalue > 1e-4


@laws
@given(seeds)
def test_intensity_keeps_the_order_of_pixels(seed):
    x = batch((5, 6, 6))
    y = augment(x, intensity, seed=seed)
    order = x.flatten(1).argsort(1)
    assert bool((y.flatten(1).gather(1, order).diff(dim=1) >= -1e-6).all())


@laws
@given(seeds)
def test_intensity_is_one_line_for_each_image(seed):
    x = batch((5, 6, 6), dtype=torch.float64)
    y = augment(x, intensity, seed=seed)
    low, high = float(x.min()), float(x.max())
    for before, after in zip(x.flatten(1), y.flatten(1), strict=True):
        inside = (after > low + 1e-9) & (after < high - 1e-9)
        if int(inside.sum()) > 2:
            slope = (after[inside].diff() / before[inside].diff()).median()
            assert 0.2 - 1e-6 <= float(slope) <= 1.5 + 1e-6
            offset = after[inside] - slope * before[inside]
            torch.testing.assert_close(offset, offset[:1].expand_as(offset), rtol=0, atol=1e-6)


@laws
@given(seeds)
def test_smooth_noise_takes_at_least_a_third_from_a_smooth_field(seed):
    """A checkerboard has no smooth part, so what is left of its contrast is the share of the image: at most 2/3."""
    board = torch.ones(16, 16, dtype=torch.float64)
    board[::2, 1::2] = board[1::2, ::2] = -1
    y = augment(board.expand(6, 16, 16), smooth_noise, seed=seed)
    contrast = (y * board).mean((1, 2))  # the field adds almost nothing to it
    assert float(contrast.max()) <= 2 / 3 + 0.05
    assert float(contrast.min()) >= -0.05


@laws
@given(seeds)
def test_affine_is_linear_above_the_background(seed):
    """The movement does not look at the pixels: images that are added move together."""
    x = batch((4, 8, 8), 1, torch.float64)
    background = torch.zeros(1, 8, 8, dtype=torch.float64)
    first, second = torch.cat([x + 1, background]), torch.cat([x.flip(-1) + 1, background])
    moved = [augment(z, affine, seed=seed) for z in (first, second, first + 2 * second)]
    torch.testing.assert_close(moved[2], moved[0] + 2 * moved[1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("transform", [affine, shuffled_patches, smooth_noise, images.default()])
@pytest.mark.parametrize("shape", [(4, 9), (2, 2, 2, 2, 2)], ids=str)
def test_image_transformations_refuse_what_are_not_images(transform, shape):
    with pytest.raises(ValueError, match=rf"\(B, H, W\) or \(B, C, H, W\); got {re.escape(str(shape))}"):
        transform(torch.rand(shape), None)


# --- feature vectors -------------------------------------------------------------------------------------------------


@laws
@given(seeds, st.integers(2, 12), st.integers(1, 6))
def test_mixed_rows_lie_on_segments_between_rows(seed, rows, columns):
    x = batch((rows, columns), seed % 1000, torch.float64)
    y = augment(x, mixup, seed=seed)
    # For row i and partner j, the point of the segment that is nearest to y_i.
    along = x[None] - x[:, None]
    length = (along**2).sum(-1).clamp(min=1e-300)
    share = ((along * (y - x)[:, None]).sum(-1) / length).clamp(0, 1)
    nearest = x[:, None] + share[..., None] * along
    assert float((nearest - y[:, None]).norm(dim=-1).min(1).values.max()) < 1e-9


@laws
@given(seeds, st.integers(1, 12), st.integers(1, 6))
def test_permuted_columns_take_their_values_from_the_same_column(seed, rows, columns):
    x = batch((rows, columns), seed % 1000)
    y = augment(x, permuted_columns, seed=seed)
    assert bool((y[:, None] == x[None]).any(1).all())


def test_permuted_columns_exchange_a_fifth_to_all_of_each_row():
    x = batch((2000, 50), dtype=torch.float64)
    changed = (augment(x, permuted_columns, seed=0) != x).double().mean(1)
    # The share of each row is uniform on (0.2, 1): its mean is 0.6 and its standard deviation 0.8 / sqrt(12).
    assert float(changed.mean()) == pytest.approx(0.6, abs=0.03)
    within_row = 0.6 * 0.4 - 0.64 / 12  # the mean of p (1 - p)
    assert float(changed.var()) == pytest.approx(0.64 / 12 + within_row / 50, rel=0.15)


@laws
@given(seeds, st.integers(1, 12), st.integers(1, 6))
def test_scaling_moves_away_from_the_centre_along_a_ray(seed, rows, columns):
    x = batch((rows, columns), seed % 1000, torch.float64)
    y = augment(x, scaled_about_centre, seed=seed)
    before, after = x - x.mean(0), y - x.mean(0)
    factor = (before * after).sum(1, keepdim=True) / (before**2).sum(1, keepdim=True).clamp(min=1e-300)
    torch.testing.assert_close(after, factor * before, rtol=0, atol=1e-9)
    somewhere = before.norm(dim=1) > 1e-9
    assert bool((factor[somewhere] >= 1 - 1e-9).all())
    assert bool((factor[somewhere] <= 5 + 1e-9).all())


@every_feature
def test_a_column_that_never_varies_stays_as_it_is(transform):
    x = batch((30, 4), dtype=torch.float64)
    x[:, 2] = 7.0
    y = augment(x, transform, seed=1)
    torch.testing.assert_close(y[:, 2], x[:, 2])
    assert not torch.equal(y, x)


def test_noise_has_up_to_two_standard_deviations_of_each_column():
    spread = torch.tensor([0.1, 1.0, 10.0], dtype=torch.float64)
    x = spread * torch.randn(20_000, 3, dtype=torch.float64)
    moved = (augment(x, noise, seed=0) - x) / x.std(0, correction=0)
    # Strength uniform on (0, 2): the variance is E s^2 = 4/3, the same for every column.
    torch.testing.assert_close(moved.var(0), torch.full((3,), 4 / 3, dtype=torch.float64), rtol=0.06, atol=0)
    assert float(moved.mean(0).abs().max()) < 0.05


@pytest.mark.parametrize("shape", [(5,), ()], ids=str)
def test_what_is_not_a_batch_is_refused(shape):
    with pytest.raises(ValueError, match="batch"):
        augment(torch.rand(shape))


# --- combinations ----------------------------------------------------------------------------------------------------


def plus(amount: float):
    return lambda x, generator: x + amount


def times(amount: float):
    return lambda x, generator: x * amount


def test_a_chain_goes_through_all_in_order():
    x = batch((5, 3))
    assert torch.equal(chain(plus(1), times(2))(x, None), (x + 1) * 2)
    assert torch.equal(chain(times(2), plus(1))(x, None), x * 2 + 1)
    assert torch.equal(chain(chain(plus(1)), times(2))(x, None), chain(plus(1), times(2))(x, None))


def test_one_of_takes_each_row_through_one_that_saw_the_whole_batch():
    seen = []

    def centred(x, generator):
        seen.append(len(x))
        return x - x.mean(0)

    x = batch((300, 3))
    y = one_of(centred, plus(1), times(3))(x, torch.Generator().manual_seed(0))
    choices = torch.stack([x - x.mean(0), x + 1, x * 3])
    which = [(y == choice).all(1) for choice in choices]
    assert torch.equal(torch.stack(which).sum(0), torch.ones(300, dtype=torch.long))
    assert stats.chisquare([int(w.sum()) for w in which]).pvalue > 1e-4
    assert seen == [300]


def test_one_of_one_and_a_chain_of_one_are_that_one():
    x = batch((5, 3))
    for combine in (one_of, chain):
        assert torch.equal(combine(plus(1))(x, None), x + 1)


def test_combinations_hand_the_random_source_on():
    x = batch((6, 8, 8))
    transform = chain(one_of(mixup, affine), pixel_noise)
    state = torch.get_rng_state()
    assert torch.equal(augment(x, transform, seed=1), augment(x, transform, seed=1))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("combine", [one_of, chain])
def test_a_combination_of_nothing_is_refused(combine):
    with pytest.raises(ValueError, match="a combination needs at least one transformation"):
        combine()


def test_the_default_suits_the_axes_of_the_batch():
    for x, expected in (
        (batch((6, 8, 8)), images.default()),
        (batch((6, 3, 8, 8)), images.default()),
        (batch((6, 4)), features.default()),
    ):
        assert torch.equal(augment(x, seed=4), expected(x, torch.Generator().manual_seed(4)))
        assert torch.equal(augment(x, default_transform(x), seed=4), augment(x, seed=4))
