"""Token transformations: integers stay integers, what is kept stays, and fractions are as announced."""

import pytest
import torch

from opu import augment
from opu.augment import tokens

PAD, START, MASK, SIZE = 0, 1, 2, 100
IDS = torch.randint(3, SIZE, (2000, 20), generator=torch.Generator().manual_seed(0))
IDS[:, 0] = START
IDS[:, 15:] = PAD
BATCH = {"input_ids": IDS, "attention_mask": (IDS != PAD).long()}
KEEP = (PAD, START)
TRANSFORMS = {
    "masked": tokens.masked(MASK, keep=KEEP),
    "replaced": tokens.replaced(SIZE, keep=KEEP),
    "dropped": tokens.dropped(PAD, keep=KEEP),
}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
@pytest.mark.parametrize("kind", ["tensor", "dict"])
def test_kept_tokens_stay_and_a_quarter_of_the_others_changes(transform, kind):
    x = IDS if kind == "tensor" else BATCH
    before = {name: t.clone() for name, t in BATCH.items()}
    found = transform(x, None)
    ids = found if kind == "tensor" else found["input_ids"]
    assert ids.dtype == torch.int64
    assert (ids[:, 0] == START).all()
    assert (ids[:, 15:] == PAD).all()
    changed = (ids != IDS)[:, 1:15].float()
    assert changed.mean() == pytest.approx(0.25, abs=0.02), "between 0 and a half for each sequence"
    assert changed.mean(1).std() > 0.1, "some sequences change more than others"
    assert all(torch.equal(t, BATCH[name]) for name, t in before.items()), "what was given stays as it was"


def test_masked_tokens_are_masked_replaced_ones_are_any_and_dropped_ones_are_hidden():
    changed = {name: t(BATCH, None) for name, t in TRANSFORMS.items()}
    where = {name: each["input_ids"] != IDS for name, each in changed.items()}
    assert (changed["masked"]["input_ids"][where["masked"]] == MASK).all()
    assert len(changed["replaced"]["input_ids"][where["replaced"]].unique()) > 90
    assert (changed["dropped"]["input_ids"][where["dropped"]] == PAD).all()
    assert torch.equal(changed["dropped"]["attention_mask"] == 0, where["dropped"] | (IDS == PAD))
    for name in ("masked", "replaced"):
        assert torch.equal(changed[name]["attention_mask"], BATCH["attention_mask"])


def test_padding_is_known_by_the_attention_mask():
    found = tokens.masked(MASK, most=1.0)(BATCH, None)
    assert (found["input_ids"][:, 15:] == PAD).all()
    assert (found["input_ids"][:, 0] == MASK).any()


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_a_seed_repeats_the_choice(transform):
    first, again, other = (augment.augment(BATCH, transform, seed=seed)["input_ids"] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_largest_fraction_is_the_largest():
    ids = torch.full((500, 400), 5)
    changed = (tokens.masked(MASK, most=0.2)(ids, None) == MASK).float().mean(1)
    assert 0.15 < changed.max() < 0.3
    assert changed.mean() == pytest.approx(0.1, abs=0.02)
    with pytest.raises(ValueError, match="the largest fraction of tokens to change must lie between 0 and 1; got 0"):
        tokens.masked(MASK, most=0.0)
    with pytest.raises(ValueError, match=r"must lie between 0 and 1; got 1\.5"):
        tokens.replaced(SIZE, most=1.5)


@pytest.mark.parametrize("x", [torch.rand(2, 3), IDS[0], {"ids": IDS}, (IDS,)])
def test_what_are_no_tokens_is_refused(x):
    with pytest.raises(
        ValueError, match=r"need integers of shape \(B, L\), or a dict with 'input_ids'.*opu\.augment\.part"
    ):
        tokens.masked(MASK)(x, None)


def test_another_key_is_transformed_by_its_name():
    batch = {"words": IDS, "image": torch.rand(2000, 4)}
    found = augment.part("words", tokens.masked(MASK, most=1.0))(batch, None)
    assert (found["words"] == MASK).any()
    assert found["image"] is batch["image"]
    with pytest.raises(ValueError, match="the inputs have the parts words, image; there is no 'text' to augment"):
        augment.part("text", tokens.masked(MASK))(batch, None)


def test_combinations_work_on_dicts():
    both = augment.chain(tokens.masked(MASK, keep=KEEP), tokens.dropped(PAD, keep=KEEP))(BATCH, None)["input_ids"]
    assert (both == MASK).any()
    assert (both[:, 1:15] == PAD).any()
    one = augment.one_of(tokens.masked(MASK, keep=KEEP), tokens.dropped(PAD, keep=KEEP))(BATCH, None)
    masked, dropped = (one["input_ids"] == MASK).any(1), (one["attention_mask"] != BATCH["attention_mask"]).any(1)
    assert not (masked & dropped).any(), "each row by one of them"
    assert masked.any()
    assert dropped.any()
    for combine in (augment.chain, augment.one_of):
        with pytest.raises(ValueError, match="a combination needs at least one transformation"):
            combine()


def test_integers_and_masks_stay_by_default_and_other_parts_do_not():
    assert augment.default_transform(IDS) is None
    assert augment.default_transform(BATCH) is None
    assert augment.augment(BATCH) is BATCH
    mixed = {**BATCH, "features": torch.randn(2000, 5), "mask": torch.ones(2000, 5), "image": torch.rand(2000, 3, 8, 8)}
    found = augment.augment(mixed, seed=0)
    changed = [name for name in mixed if not torch.equal(found[name], mixed[name])]
    assert changed == ["features", "image"]


def test_bytes_are_pixels_only_in_the_shape_of_an_image():
    assert augment.default_transform(torch.zeros(2, 5, dtype=torch.uint8)) is None
    images = torch.randint(256, (50, 8, 8), dtype=torch.uint8)
    found = augment.augment(images, seed=0)
    assert found.dtype == torch.uint8
    assert not torch.equal(found, images)
