"""What distillation asks of a student, with defaults that suit any module which predicts a Dirichlet."""

from typing import Any, final

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from opu.choices import Updates
from opu.distributions.dirichlet import Dirichlet
from opu.novelty import Novelty
from opu.students.links import BoundedLink
from opu.teachers import Teacher


class BaseStudent(nn.Module):
    """A module from inputs to Dirichlets. Subclasses say more about themselves where they can."""

    novelty: Novelty | None

    def __init__(self) -> None:
        super().__init__()
        self.novelty = None
        self._kept_norms: list[nn.Module] = []

    def parameter_groups(self, updates: Updates) -> list[list[nn.Parameter]]:
        """The parameters that are updated together: one group, or the mean's and the precision's in turn."""
        if updates == "alternating":
            raise ValueError(
                "alternating updates need a student that tells the mean's parameters from the precision's, such as "
                f"opu.students.mlp; {type(self).__name__} does not. Use updates='joint'."
            )
        return [list(self.parameters())]

    def bounds(self) -> BoundedLink | None:
        """The link that bounds the log-precision, if there is one."""
        return None

    def link_name(self) -> str:
        """The link as text."""
        return ""

    def set_novelty(self, novelty: Novelty | None) -> None:
        """Keep a calibrated novelty score, or forget the one that no longer fits the weights."""
        self.novelty = novelty

    def saw(self, x: Tensor) -> None:
        """Take note of what inputs look like."""

    def fresh_start(self, teacher: Teacher, recipe: Any) -> "BaseStudent":
        """Get ready for a new distillation."""
        self.set_novelty(None)
        self._keep_statistics()
        return self

    def distill_mode(self) -> None:
        """Training mode; batch norm that came with statistics keeps them.

        Half of each batch is augmented, so statistics taken from it would fit neither half of the inputs.
        """
        self.train()
        for layer in self._kept_norms:
            layer.eval()

    def _keep_statistics(self) -> None:
        norms = [layer for layer in self.modules() if isinstance(layer, _BatchNorm)]
        counts = [0 if layer.num_batches_tracked is None else int(layer.num_batches_tracked) for layer in norms]
        self._kept_norms = [layer for layer, count in zip(norms, counts, strict=True) if count > 0]


@final
class _Module(BaseStudent):
    """A user's own module with the defaults."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Dirichlet:
        q: Dirichlet = self.module(x)
        return q

    def parameter_groups(self, updates: Updates) -> list[list[nn.Parameter]]:
        try:
            return super().parameter_groups(updates)
        except ValueError as error:
            raise ValueError(str(error).replace(type(self).__name__, type(self.module).__name__)) from None

    def set_novelty(self, novelty: Novelty | None) -> None:
        self.module.novelty = novelty  # type: ignore[assignment]


def as_student(module: nn.Module) -> BaseStudent:
    """The student itself, or any other module with the defaults of :class:`BaseStudent`."""
    return module if isinstance(module, BaseStudent) else _Module(module)
