"""Which parts of an item are features: labels that come along are left out, and nothing else is, without a word."""

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from opu.batches import Batch, as_batch, describe, is_dataclass, parameters_of, tensors

# Keys under which loaders keep labels. They are features only for a network that cannot be called without them.
LABELS = ("label", "labels", "target", "targets", "y")
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Features:
    """From an item of a loader or dataset to what a network reads.

    Args:
        net: The network that reads the features; None takes the first part of a tuple, and all of a dict but its labels.
        finite: Whether features that are NaN or infinite are refused where they are read.
    """

    def __init__(self, net: nn.Module | None = None, *, finite: bool = True) -> None:
        self.finite = finite
        names = getattr(net, "input_names", None)
        self._names: list[str] | None = names if isinstance(names, list) else None
        self._parameters = None if net is None else parameters_of(net)

    def __call__(self, item: Any) -> Batch:
        """The features of a batch, labels left out."""
        batch = as_batch(item)
        if isinstance(batch, Mapping):
            return self._of_dict(batch)
        return self._of_parts(batch) if isinstance(batch, tuple | list) else batch

    def _of_dict(self, batch: Mapping[str, Any]) -> Batch:
        known, required, open_ended = self._takes()
        if self._names is None and known.isdisjoint(batch):  # one argument, which is the dict
            return {key: value for key, value in batch.items() if key not in LABELS}
        kept = {}
        for key, value in batch.items():
            if key in LABELS and key not in required:
                continue
            if key in known or (open_ended and not _is_label(value)):
                kept[key] = value
            elif not _is_label(value):
                raise ValueError(
                    f"the network takes {', '.join(sorted(known))}, but the inputs hold {key!r} ({describe(value)}) as well; "
                    "remove it, or let forward() take it."
                )
        return kept

    def _takes(self) -> tuple[set[str], set[str], bool]:
        """The keys that the network takes, those that it cannot do without, and whether it takes any other."""
        if self._names is not None:  # nested parts have dots between levels, and may come flat
            known = {name.split(".")[0] for name in self._names}
            return known | {*self._names}, known, False
        parameters = [each for each in self._parameters or [] if each.kind is not each.VAR_KEYWORD]
        required = {each.name for each in parameters if each.default is each.empty}
        return {each.name for each in parameters}, required, len(parameters) < len(self._parameters or [])

    def _of_parts(self, parts: tuple[Any, ...] | list[Any]) -> Batch:
        """The first parts, as many as the network takes; the others must look like labels."""
        if not parts:
            raise ValueError("inputs must have features; got an empty tuple. Check what the dataset returns.")
        if isinstance(parts[0], Mapping) or is_dataclass(parts[0]):
            required, most = 1, 1
        else:
            required, most = self._room(parts)
        kept = [*parts[:required]]
        for part in parts[required:]:
            if _is_label(part) or _looks_like_targets(part) or len(kept) == most:
                break
            if _is_one_per_row(part):
                raise ValueError(
                    f"part {len(kept)} of each item holds one number per row, and the network could take it; is it an input "
                    "or a target? Give inputs by name, as a dict, or leave targets out."
                )
            kept.append(part)
        self._refuse_other_inputs(parts, len(kept))
        if len(kept) > 1:
            return tuple(kept)
        return self._of_dict(kept[0]) if isinstance(kept[0], Mapping) else kept[0]

    def _room(self, parts: tuple[Any, ...] | list[Any]) -> tuple[int, int]:
        """How many parts the network needs, and how many it has room for."""
        if self._names is not None:
            return len(self._names), len(self._names)
        if self._parameters is None:
            return 1, 1
        by_place = [each for each in self._parameters if each.kind in _POSITIONAL]
        required = sum(each.default is each.empty for each in by_place)
        several = any(each.kind is each.VAR_POSITIONAL for each in self._parameters)
        return max(1, min(required, len(parts))), len(parts) if several else max(1, len(by_place))

    def _refuse_other_inputs(self, parts: tuple[Any, ...] | list[Any], count: int) -> None:
        for part in parts[count:]:
            if _is_label(part) or _looks_like_targets(part):
                return  # what comes after a label, such as weights of rows, is no input either
            if isinstance(part, Tensor):
                takes = "one input" if count == 1 else f"{count} inputs"
                nested = (
                    " If each item is one array in nested lists, make it a tensor." if isinstance(parts, list) else ""
                )
                raise ValueError(
                    f"the network takes {takes}, but each item has {len(parts)} parts, and one of the others does not look "
                    f"like a class label ({describe(part)}). Give the features alone, or a network whose forward() takes "
                    f"them all.{nested}"
                )


def _is_one_per_row(value: Any) -> bool:
    """Whether this holds at most one number for each row, as labels and row numbers do."""
    found = list(tensors(value).values())
    return all(t.ndim <= 1 or t[0].numel() == 1 for t in found if t.ndim == 0 or len(t))


def _is_label(value: Any) -> bool:
    """Whether this holds a whole number for each row, or no numbers at all, such as texts."""
    whole = all(not t.is_floating_point() or bool((t == t.round()).all()) for t in tensors(value).values())
    return whole and _is_one_per_row(value)


def _looks_like_targets(part: Any) -> bool:
    """Whether rows are class probabilities, one-hot or soft: they lie on the simplex."""
    if not isinstance(part, Tensor) or part.ndim != 2 or part.shape[1] < 2:
        return False
    rows = part.double()
    return bool((rows >= 0).all()) and bool(((rows.sum(1) - 1).abs() < 1e-3).all())
