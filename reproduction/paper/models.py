"""How each kind of row is made: teachers, students and baselines of one experiment and one seed."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

import opu
from opu.files import write_atomically
from opu.objectives import CrossEntropy, Objective
from opu.students import BaseStudent, Student
from opu.students.start import copy_weights
from opu.teachers import Chain, Ensemble, LangevinSettings, MCDropout, Teacher, WeightSamples, as_teacher
from reproduction.baselines import CategoricalStudent, ConcentrationStudent
from reproduction.paper import classifiers
from reproduction.paper.domains import Domain
from reproduction.paper.presets import PRESETS, Preset
from reproduction.paper.prior_networks import SETTINGS as PRIOR_NETWORKS
from reproduction.paper.prior_networks import train_prior_network
from reproduction.paper.rows import Row

NUM_MEMBERS = 5


@dataclass(frozen=True)
class Scale:
    """How long and how large an experiment is: the whole one, or a small version.

    Attributes:
        name: The name in file names.
        teacher_epochs: Passes over the training inputs of a teacher.
        langevin: Settings of the SGLD chain.
        num_particles: Number of particles per input in the evaluation.
        hidden: Widths of the MLP's hidden layers.
        epochs: Passes over the inputs of a distillation; those of the preset by default.
        step_particles: Number of particles per input and step, where ``epochs`` is given.
        fraction_of_epochs: Factor on the preset's epochs, for domains with more inputs.
        prior_network_epochs: Passes over the inputs of a prior network.
        vgg_channels: Channels of the prior network's two blocks.
        transport_steps: Steps of the pointwise fit by transport.
        transport_points: Particles per step of that fit.
    """

    name: str = "full"
    teacher_epochs: int = 40
    langevin: LangevinSettings = field(
        default_factory=lambda: LangevinSettings(burn_in=50_000, thinning=200, num_samples=500)
    )
    num_particles: int = 500
    hidden: tuple[int, ...] = (400, 400)
    epochs: int | None = None
    step_particles: int | None = None
    fraction_of_epochs: float = 1.0
    prior_network_epochs: int = 12
    vgg_channels: tuple[int, int] = (64, 128)
    transport_steps: int = 40
    transport_points: int = 64

    def preset(self, name: str) -> Preset:
        """A preset at this scale."""
        preset = PRESETS[name]
        if self.epochs is not None:
            return preset.quick(self.epochs, self.step_particles or 16)
        return preset.changed(epochs=round(self.fraction_of_epochs * preset.epochs))


@dataclass(eq=False)
class Models:
    """All models of one experiment and one seed; teachers are trained when first asked for, and kept in the folder."""

    domain: Domain
    scale: Scale
    seed: int
    folder: Path
    device: torch.device
    progress: bool = True
    _teachers: dict[str, Teacher] = field(default_factory=dict)

    def teacher(self, name: str) -> Teacher:
        """MC dropout, SGLD or a deep ensemble on this domain."""
        if name not in self._teachers:
            torch.manual_seed(self.seed)
            makers: dict[str, Callable[[], Teacher]] = {
                "mc_dropout": self._mc_dropout,
                "sgld": self._sgld,
                "ensemble": self._ensemble,
            }
            self._teachers[name] = makers[name]()
        return self._teachers[name]

    def classifier(self, dropout: float = 0.0) -> nn.Sequential:
        """The experiment's network: an MLP for MNIST, a LeNet for EMNIST."""
        classes = self.domain.num_classes
        if self.domain.network == "mlp":
            return classifiers.mlp(classes, self.scale.hidden, dropout).to(self.device)
        return classifiers.lenet(classes, dropout=dropout).to(self.device)

    def vgg(self) -> nn.Sequential:
        """The network of the published prior network."""
        return classifiers.vgg(self.domain.num_classes, self.scale.vgg_channels).to(self.device)

    def student(self, link: str, family: str = "dirichlet") -> Student:
        """A student of the classifier's shape, with two networks; the link is a Dirichlet's."""
        predicts: dict[str, Any] = {"family": family} | ({"link": link} if family == "dirichlet" else {})
        if self.domain.network == "mlp":
            return opu.students.mlp(784, self.domain.num_classes, self.scale.hidden, **predicts).to(self.device)
        return opu.students.lenet(self.domain.num_classes, **predicts).to(self.device)

    def _mc_dropout(self) -> MCDropout:
        net = self._trained(self.classifier(dropout=0.5), "mc_dropout")
        return MCDropout(net, consistent=True, memory_budget=self.memory_budget)

    def _ensemble(self) -> Ensemble:
        return Ensemble([self.member(number) for number in range(NUM_MEMBERS)])

    def member(self, number: int) -> nn.Sequential:
        """A plain network of the ensemble; they differ in their start and in the order of the inputs."""
        torch.manual_seed(100 * self.seed + number)
        return self._trained(self.classifier(), f"member-{number}")

    def _trained(self, net: nn.Sequential, name: str) -> nn.Sequential:
        """The network with its weights from the folder; if they are not there yet, it is trained and kept there."""
        path = self.folder / f"{name}.safetensors"
        if path.exists():
            net.load_state_dict(_read(path))
        else:
            self.train(net)
            write_atomically(path, to_bytes({name: w.cpu().contiguous() for name, w in net.state_dict().items()}))
        return net.eval()

    def train(self, net: nn.Module, loss: Callable[[Tensor, Tensor], Tensor] | None = None) -> None:
        """Train with labels, as long as every teacher; by cross-entropy unless another loss is given."""
        classifiers.train(
            net,
            self.domain.x,
            self.domain.labels,
            loss or (lambda x, labels: nn.functional.cross_entropy(net(x), labels)),
            epochs=self.scale.teacher_epochs,
            progress=self.progress,
        )

    def _sgld(self) -> WeightSamples:
        net, path = self.classifier(), self.folder / "sgld.safetensors"
        if not path.exists():
            settings = self.scale.langevin
            opu.teachers.sgld(net, self.domain.x, self.domain.labels, settings, progress=self.progress).save(path)
        # Read back in any case, since what was kept is rounded and a run that goes on must see the same.
        return WeightSamples.load(net, path, memory_budget=self.memory_budget)

    @property
    def memory_budget(self) -> int:
        """Bytes that a teacher's activations may take."""
        return 2**32 if self.device.type == "cuda" else 2**28

    def make(self, row: Row) -> nn.Module:
        """The trained model of a row that has one: all but the pointwise ones. It depends on row and seed alone."""
        if row.kind in ("opu", "bdk", "bdk_dir"):
            self.teacher(row.teacher)  # first, since it seeds for itself
        torch.manual_seed(1000 + self.seed)
        makers: dict[str, Callable[[Row], nn.Module]] = {
            "opu": self._opu,
            "bdk": self._bdk,
            "bdk_online": self._bdk_online,
            "bdk_dir": self._bdk_dir,
            **dict.fromkeys(PRIOR_NETWORKS, self._dpn),
        }
        return makers[row.kind](row).eval()

    def _opu(self, row: Row) -> nn.Module:
        preset, teacher = self.scale.preset(row.preset), self.teacher(row.teacher)
        student = self.student(preset.link, row.family).start_mean_from(teacher)
        if preset.fitted_inputs and row.family == "dirichlet":
            student.fit_bounds(teacher, self.domain.held_out[: preset.fitted_inputs], self.scale.num_particles)
        self.distil(row, student, preset)
        student.save(self.folder / slug(row.name) / "student")
        return student

    def _bdk(self, row: Row) -> nn.Module:
        student = CategoricalStudent(self.started(row.teacher))
        self.distil(row, student, self.scale.preset(row.preset), CrossEntropy())
        return student

    def started(self, name: str) -> nn.Module:
        """A single network that starts where the students' mean networks start: from the teacher's weights."""
        net, start = self.classifier(), as_teacher(self.teacher(name)).network()
        copied = start is not None and copy_weights(start, net)
        assert copied, "the teacher must have the classifier's layers"
        return net

    def _bdk_online(self, row: Row) -> nn.Module:
        return self.online_student(self.scale.preset("robust"))

    def online_student(self, preset: Preset, noise: float = 0.03) -> CategoricalStudent:
        """Student and chain walk together, one fresh sample a step, inputs with a little noise.

        The chain goes as far as the one whose samples are kept, so that both meet the same posterior.
        """
        settings = self.scale.langevin
        steps = preset.epochs * (len(self.domain.x) // preset.recipe.batch_size)
        settings = replace(settings, thinning=max(1, settings.thinning * settings.num_samples // steps))
        chain = Chain(self.classifier(), self.domain.x, self.domain.labels, settings)
        chain.walk(settings.burn_in, self.progress)
        student = CategoricalStudent(self.classifier())
        copy_weights(chain.network(), student.net)
        recipe = preset.changed(
            objective=CrossEntropy(), num_particles=1, augment=_Noise(noise), augmented_fraction=1.0
        ).recipe
        # A single state of the chain would be a poor judge, so nothing is held out.
        opu.distill(chain, student, self.domain.x, recipe=recipe, held_out=0, progress=self.progress)
        return student

    def _bdk_dir(self, row: Row) -> nn.Module:
        student = ConcentrationStudent(self.started(row.teacher))
        # With one network there is nothing to update in turn.
        self.distil(row, student, self.scale.preset(row.preset).changed(updates="joint"))
        return student

    def distil(self, row: Row, student: BaseStudent, preset: Preset, objective: Objective | None = None) -> None:
        """Distil the row's teacher into a student; a run that was stopped goes on.

        Args:
            row: Names teacher, divergence and folder.
            student: It is trained in place.
            preset: How to distil.
            objective: An objective in place of the row's divergence.
        """
        if objective is None:
            recipe = preset.recipe_for(row.divergence, row.teacher)
        else:
            recipe = replace(preset.recipe, objective=objective)
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", ".* holds no student/"
            )  # a baseline of another class; no command reads it
            opu.distill(
                preset.seen(self.teacher(row.teacher), row.divergence),
                student,
                self.domain.x,
                recipe=replace(recipe, cuda_graph=self.device.type == "cuda"),
                held_out=self.domain.held_out,
                out=self.folder / slug(row.name),
                resume=True,
                progress=self.progress,
            )

    def _dpn(self, row: Row) -> nn.Module:
        settings = replace(PRIOR_NETWORKS[row.kind], epochs=self.scale.prior_network_epochs)
        net = self.vgg() if row.kind.startswith("dpn_vgg") else self.classifier()
        return train_prior_network(net, self.domain.x, self.domain.labels, settings, self.progress)


def slug(name: str) -> str:
    """A row's name as a file name."""
    return name.lower().replace(" ", "-").replace("(", "").replace(")", "")


@dataclass(frozen=True)
class _Noise:
    scale: float

    def __call__(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return x + self.scale * torch.randn(x.shape, generator=generator, device=x.device)


def _read(path: Path) -> dict[str, Any]:
    try:
        weights: dict[str, Any] = load_file(path)
        return weights
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is not a whole file of weights ({error}); delete it and run again.") from error
