"""What distillation asks of a student, with defaults that suit any module which predicts a Dirichlet."""

from typing import Any, final

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from opu.batches import Batch, call
from opu.choices import Updates
from opu.novelty import Novelty
from opu.prediction import Prediction, predict_batches
from opu.students.links import BoundedLink
from opu.students.reading import batches_for
from opu.teachers import Teacher


class BaseStudent(nn.Module):
    """A module from inputs to Dirichlets. Subclasses say more about themselves."""

    novelty: Novelty | None

    def __init__(self) -> None:
        super().__init__()
        self.novelty = None
        self.kept_layers: list[str] = []
        # Which conversion suits inputs of a kind, by names, types and axes (opu.students.reading.conversion).
        self.known_conversions: dict[Any, int] = {}

    def parameter_groups(self, updates: Updates) -> list[list[nn.Parameter]]:
        """The parameters that are updated together: one group, or the mean's and the precision's in turn."""
        if updates == "alternating":
            raise ValueError(
                "alternating updates need a student that tells the mean's parameters from the precision's, such as "
                f"opu.students.mlp; {self._name()} does not. Use updates='joint'."
            )
        return [list(self.parameters())]

    def bounds(self) -> BoundedLink | None:
        """The link that bounds the log-precision, if there is one."""
        return None

    def family_name(self) -> str:
        """The name of the family that the student predicts."""
        return "dirichlet"

    def link_name(self) -> str:
        """The link as text."""
        return ""

    def set_novelty(self, novelty: Novelty | None) -> None:
        """Keep a calibrated novelty score, or forget the one that no longer fits the weights."""
        self.novelty = novelty

    def saw(self, x: Batch, columns: list[str] | None = None) -> None:
        """Take note of what inputs look like, and of the names of a data frame's columns."""

    def reads(self) -> nn.Module:
        """The network whose ``forward`` meets the inputs."""
        return self

    def input_shape(self) -> tuple[int, ...] | None:
        """Shape of a single input, if it is one tensor and known."""
        return None

    def columns(self) -> list[str] | None:
        """Names of the columns of the data frame that the student was distilled on, if it was one."""
        return None

    def predict(self, inputs: Any, *, batch_size: int = 1024) -> Prediction:
        """Predict inputs of any kind: no gradients, in batches, on the student's device, arrays out.

        Inputs with NaN or infinite values, or with values too large for the student's type of numbers, have no prediction
        and are always novel; see :class:`opu.prediction.Prediction`.

        Args:
            inputs: A tensor, an array, a data frame, a dict or tuple of these, a dataset, a loader or an iterable of batches;
                labels that come along are not read.
            batch_size: Inputs per batch; a loader's own batches are taken as they come.
        """
        return predict_batches(self, batches_for(self, inputs, batch_size, finite=False))

    def fresh_start(self, teacher: Teacher, recipe: Any) -> "BaseStudent":
        """Get ready for a new distillation."""
        self.set_novelty(None)
        self.kept_layers = self.layers_to_keep()
        return self

    def layers_to_keep(self) -> list[str]:
        """Names of the layers that stay in evaluation mode while distilling: batch norm that came with statistics.

        Half of each batch is augmented, so statistics taken from it would fit neither half of the inputs.
        """
        return [name for name, layer in self.named_modules() if isinstance(layer, _NormBase) and _has_statistics(layer)]

    def distill_mode(self) -> None:
        """Training mode, except for the layers that are kept."""
        self.train()
        for name in self.kept_layers:
            self.get_submodule(name).training = False

    def _name(self) -> str:
        return type(self).__name__


def _has_statistics(layer: _NormBase) -> bool:
    """Whether running statistics differ from those of a new layer; counts of batches are missing in old files."""
    if layer.running_mean is None or layer.running_var is None:
        return False
    return bool(layer.running_mean.any() | (layer.running_var != 1).any())


@final
class _Module(BaseStudent):
    """A user's own module with the defaults."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Batch) -> Any:  # what it gives is checked by distill
        return call(self.module, x)

    def reads(self) -> nn.Module:
        return self.module

    def set_novelty(self, novelty: Novelty | None) -> None:
        self.module.novelty = novelty  # type: ignore[assignment]

    def _name(self) -> str:
        return type(self.module).__name__


def as_student(module: nn.Module) -> BaseStudent:
    """The student itself, also inside a wrapper of torch, or any other module with the defaults of :class:`BaseStudent`."""
    inner: Any = getattr(module, "_orig_mod", module)  # torch.compile wraps a module
    inner = inner.module if isinstance(inner, nn.DataParallel) else inner
    if isinstance(inner, BaseStudent):
        return inner
    return module if isinstance(module, BaseStudent) else _Module(module)
