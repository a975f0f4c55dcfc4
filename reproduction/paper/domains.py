"""The data of the experiments: a domain with its OOD sets, whole or in part."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from reproduction.data import dataset, images, locate

HELD_OUT = 5000
SPLIT_SEED = 5


@dataclass(frozen=True)
class Domain:
    """In-distribution inputs in three parts, and OOD sets by name.

    ``held_out`` is taken from the training part before any teacher sees it: it chooses epochs and calibrates novelty.
    Labels of the held-out part are kept for choosing the settings of teachers and baselines. ``network`` is the
    architecture that the experiments use for such inputs, ``mlp`` or ``lenet``.
    """

    name: str
    num_classes: int
    x: Tensor
    labels: Tensor
    held_out: Tensor
    held_out_labels: Tensor
    test: Tensor
    test_labels: Tensor
    ood: dict[str, Tensor]
    network: str = "mlp"

    def to(self, device: torch.device) -> "Domain":
        """All of it on a device."""
        moved: dict[str, Any] = {n: value.to(device) for n, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **moved, ood={name: x.to(device) for name, x in self.ood.items()})

    def small(self, num_inputs: int, num_test: int, num_ood: int) -> "Domain":
        """The first rows of each part; every part was shuffled already."""
        held_out = min(len(self.held_out), num_test)
        return replace(
            self,
            x=self.x[:num_inputs],
            labels=self.labels[:num_inputs],
            held_out=self.held_out[:held_out],
            held_out_labels=self.held_out_labels[:held_out],
            test=self.test[:num_test],
            test_labels=self.test_labels[:num_test],
            ood={name: x[:num_ood] for name, x in self.ood.items()},
        )

    def without(self, classes: Collection[int]) -> "Domain":
        """The domain of all other classes, numbered anew; test inputs of the missing ones are its only OOD set."""
        kept = [k for k in range(self.num_classes) if k not in classes]
        number = torch.full((self.num_classes,), -1)
        number[kept] = torch.arange(len(kept))
        parts: dict[str, Tensor] = {}
        for inputs, labels in (("x", "labels"), ("held_out", "held_out_labels"), ("test", "test_labels")):
            anew = number[getattr(self, labels)]
            parts |= {inputs: getattr(self, inputs)[anew >= 0], labels: anew[anew >= 0]}
        ood = {"held_out_classes": self.test[number[self.test_labels] < 0]}
        return replace(self, **parts, num_classes=len(kept), ood=ood)  # type: ignore[arg-type]


def mnist() -> Domain:
    """MNIST, with the paper's OOD sets as released and matched, and harder ones."""
    test = images.mnist("test")
    ood = {
        "omniglot": _shuffled(images.omniglot("evaluation", "as_released").images),
        "semeion": _shuffled(images.semeion("as_released").images),
        "omniglot_matched": _shuffled(images.omniglot("evaluation", "matched").images),
        "semeion_matched": _shuffled(images.semeion("matched").images),
        "letters": images.emnist_letters(10_000).images,
        "noise": images.noise(10_000, seed=0),
        "shifted": _shuffled(images.shifted(test.images)),
    }
    return _domain("mnist", 10, images.mnist("train"), test, ood)


def emnist() -> Domain:
    """EMNIST Balanced if its files are here, else a fixed split of ByMerge's test part; the name says which."""
    whole = all(locate(file) is not None for file in dataset("emnist-balanced").files)
    load = images.emnist_balanced if whole else images.emnist_bymerge47
    test = load("test")
    shifted = images.shifted(_shuffled(test.images)[:10_000])
    ood = {
        "omniglot": _shuffled(images.omniglot("evaluation", "as_released").images),
        "omniglot_matched": _shuffled(images.omniglot("evaluation", "matched").images),
        "noise": images.noise(10_000, seed=0),
        "shifted": shifted,
    }
    return replace(_domain(test.name, 47, load("train"), test, ood), network="lenet")


def held_out_classes(domain: Domain, seed: int) -> Domain:
    """A domain without one class in five: which ones turns with the seed, so that five seeds leave out each class once."""
    left_out = [k for k in range(domain.num_classes) if k % 5 == seed % 5]
    return replace(domain.without(left_out), name=f"{domain.name}-without-{seed % 5}-mod-5")


def with_photographs(domain: Domain) -> Domain:
    """The domain with one more OOD set, which the paper's tables do not have."""
    return replace(domain, ood={**domain.ood, "photographs": images.photographs(10_000, seed=0)})


DOMAINS = {"mnist": mnist, "emnist": emnist}


def _domain(
    name: str, num_classes: int, train: images.ImageSet, test: images.ImageSet, ood: dict[str, Tensor]
) -> Domain:
    order = _order(len(train.images))
    held_out, rest = order[:HELD_OUT], order[HELD_OUT:]
    test_order = _order(len(test.images))
    return Domain(
        name,
        num_classes,
        train.images[rest],
        train.labels[rest],
        train.images[held_out],
        train.labels[held_out],
        test.images[test_order],
        test.labels[test_order],
        ood,
    )


def _order(count: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(SPLIT_SEED))


def _shuffled(rows: Tensor) -> Tensor:
    return rows[_order(len(rows))]
