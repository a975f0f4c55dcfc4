"""``opu bench predict``: teachers, other methods and students on the same inputs, in one run."""

import copy
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor, nn

import opu
from benchmarks import options
from benchmarks.clock import matmul_precision, take_turns
from benchmarks.passes import CompiledFolded, Folded, KeptUnits, Running, dropout_mlp, loop, mc_dropout, vectorised
from benchmarks.show import show_predict
from opu.acceleration import Optimized, optimize
from opu.acceleration.fused import Fused
from opu.acceleration.stacked import Stacked
from opu.checks import first_line
from opu.choices import Precision
from opu.export import write
from opu.export.onnx_file import required, runner
from opu.export.outputs import CLOSED_FORM
from opu.measures import MEASURES
from opu.students import Student
from opu.terminal import say
from reproduction.baselines import CategoricalStudent

FEATURES, HIDDEN, CLASSES = 784, (400, 400), 10
CHUNK = {"cuda": 100, "cpu": 4}  # particles in one product if masks are in the weights
FEW = 20  # particles of rows that would take minutes with all of them; their time grows in proportion
IN_PART = {"teacher, loop", "teacher, vectorised", "torch-uncertainty"}
STUDENTS = {"student": False, "student, one trunk": True}  # whether the trunk is shared
EXPORTS = {"ONNX": False, "ONNX int8": True}  # whether in int8
CALIBRATION = 1000

Call = Callable[[Tensor], object]
Maker = Callable[[int], Call | None]  # from a batch size to a call; None if this machine cannot make it
Row = tuple[str, Maker]


@dataclass(frozen=True)
class Setup:
    """What is timed, and where.

    Attributes:
        device: ``cpu`` or ``cuda``.
        num_particles: Number of particles per input.
        compiled: Whether ``torch.compile`` is tried.
        notes: Remarks by name: chosen backends, and rows that this machine does not have, with the reason.
    """

    device: str
    num_particles: int
    compiled: bool
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def few(self) -> int:
        """Number of particles of the slow rows."""
        return min(FEW, self.num_particles)

    def inputs(self, count: int) -> Tensor:
        """Random inputs; speed does not depend on them."""
        return torch.rand(count, FEATURES, device=self.device)


def command(
    device: str,
    particles: int,
    batches: list[int],
    rounds: int,
    compiled: bool,
    out: Path | None,
    record: bool,
    console: Console,
) -> None:
    """Time every row at every batch size, print the tables and write the file.

    Args:
        device: ``cpu`` or ``cuda``.
        particles: Number of particles per input.
        batches: Batch sizes.
        rounds: Number of timings of each row.
        compiled: Try ``torch.compile`` too.
        out: File for the numbers.
        record: Write the numbers to ``results/``.
        console: Where to print.
    """
    path = options.destination(f"predict-{device}", out, record)
    torch.manual_seed(0)
    setup = Setup(device, particles, compiled)
    rows = dict(_rows(setup))
    inputs, found = setup.inputs(max(batches)), {}
    # Products on a GPU in TF32, as its users run them.
    with torch.no_grad(), matmul_precision("high") if device == "cuda" else nullcontext():
        for batch in batches:
            say(console, f"batch of {batch}")
            made = {name: make(batch) for name, make in rows.items()}
            calls = {name: partial(call, inputs[:batch]) for name, call in made.items() if call is not None}
            parts = dict.fromkeys(IN_PART, setup.few / particles)
            found[str(batch)] = {n: each.summary() for n, each in take_turns(calls, rounds, parts=parts).items()}
    result = {
        "device": device,
        "num_particles": particles,
        "particles_in_one_product": CHUNK[device],
        "network": {"features": FEATURES, "hidden": list(HIDDEN), "classes": CLASSES},
        "rounds": rounds,
        "batches": found,
        "notes": setup.notes,
    }
    show_predict(result, console)
    options.write(path, result)


def _rows(setup: Setup) -> Iterator[Row]:
    net = dropout_mlp(FEATURES, HIDDEN, CLASSES).to(setup.device).eval()
    yield from _teachers(setup, net)
    yield "one network", _always(net)
    yield "BDK", _always(CategoricalStudent(net))
    yield from _other_methods(setup, net)
    students = {name: _student(setup, shared_trunk) for name, shared_trunk in STUDENTS.items()}
    for name, student in students.items():
        yield name, _always(student)
        yield f"{name}, all measures", _always(partial(_all_measures, student))
    yield from _accelerated(setup, students["student"])
    if setup.device == "cpu":
        yield from _exported(setup, students)


def _always(call: Call) -> Maker:
    return lambda batch: call


def _teachers(setup: Setup, net: nn.Sequential) -> Iterator[Row]:
    rows = 10_000 if setup.device == "cuda" else 500
    count, few, chunk = setup.num_particles, setup.few, CHUNK[setup.device]
    each, shared = mc_dropout(net, consistent=False), mc_dropout(net, consistent=True)
    yield "teacher, loop", _always(lambda x: loop(net, x, few))
    yield "teacher, vectorised", _always(lambda x: vectorised(each, x, few, rows))
    yield "teacher, one mask per particle", _always(lambda x: vectorised(shared, x, count, rows))
    yield "teacher, masks in the weights", _always(lambda x: Folded(net, torch.float32, chunk)(x, count))
    yield "teacher, kept units", _always(lambda x: KeptUnits(net, torch.float32, chunk)(x, count))
    dtype, ending = torch.float32, ""
    if setup.device == "cuda":
        dtype, ending = torch.bfloat16, ", bfloat16"
        yield "teacher, masks in the weights, bfloat16", _always(lambda x: Folded(net, dtype, chunk)(x, count))
    if setup.compiled:
        yield (
            f"teacher, masks in the weights, compiled{ending}",
            _if_it_compiles(setup, lambda: partial(CompiledFolded(net, dtype, chunk), num_particles=count)),
        )


def _if_it_compiles(setup: Setup, make: Callable[[], Call]) -> Maker:
    """Compile for each batch size, which happens in the first call."""

    def maker(batch: int) -> Call | None:
        call = make()
        try:
            call(setup.inputs(batch))
        except Exception as error:  # whatever a compiler may raise, or that there is none
            setup.notes["torch.compile"] = f"{type(error).__name__}: {first_line(error)}"
            return None
        return call

    return maker


def _other_methods(setup: Setup, net: nn.Sequential) -> Iterator[Row]:
    """Predictions by other libraries, if they are installed."""
    try:
        from torch_uncertainty.methods import mc_dropout as wrapped

        # A copy, since its wrapper leaves dropout on; in a loop, since 500 copies of a batch would not fit.
        theirs = wrapped(copy.deepcopy(net), num_estimators=setup.few, on_batch=False).eval()

        def torch_uncertainty(x: Tensor) -> object:
            found = Running()
            found.add(theirs(x).view(setup.few, len(x), -1))
            return found.summary()

        yield "torch-uncertainty", _always(torch_uncertainty)
    except ImportError:
        setup.notes["torch-uncertainty"] = "not installed"
    try:
        from laplace import Laplace
        from torch.utils.data import DataLoader, TensorDataset
    except ImportError:
        setup.notes["laplace-torch"] = "not installed"
        return
    x = setup.inputs(CALIBRATION)
    posterior = Laplace(net, "classification", subset_of_weights="last_layer", hessian_structure="kron")
    posterior.fit(DataLoader(TensorDataset(x, torch.randint(CLASSES, (len(x),), device=x.device)), batch_size=500))
    yield "laplace-torch, probit", _always(partial(posterior, link_approx="probit"))


def _student(setup: Setup, shared_trunk: bool) -> Student:
    student = opu.students.mlp(FEATURES, CLASSES, HIDDEN, shared_trunk=shared_trunk).to(setup.device)
    opu.calibrate(student, setup.inputs(CALIBRATION))
    return student.eval()


def _all_measures(student: Student, x: Tensor) -> list[Tensor]:
    """The measures of an exported file."""
    q = student(x)
    assert student.novelty is not None
    return [*(MEASURES[name](q) for name in CLOSED_FORM), student.novelty(q), student.novelty.p_value(q)]


def _accelerated(setup: Setup, student: Student) -> Iterator[Row]:
    if setup.compiled:

        def parts(x: Tensor) -> tuple[Tensor, Tensor]:
            q = student(x)
            return q.mean, q.log_precision

        yield "student, compiled", _if_it_compiles(setup, lambda: torch.compile(parts, dynamic=False))
    yield "student, optimised", lambda batch: _optimized(setup, student, batch, "float32")
    if setup.device == "cuda":
        name = "student, optimised, bfloat16"
        yield name, lambda batch: _optimized(setup, student, batch, "bfloat16")
        yield f"{name}, inputs in bfloat16", lambda batch: _on_bfloat16_inputs(setup, student, batch)
        yield f"{name}, inputs in place", lambda batch: _replayed(setup, student, batch)


def _optimized(setup: Setup, student: Student, batch: int, precision: Precision) -> Optimized:
    compiled = setup.compiled and precision == "float32"
    fast = optimize(student, setup.inputs(batch), precision=precision, compiled=compiled)
    timings = [f"{name} {t if isinstance(t, str) else f'{1e6 * t:.0f} us'}" for name, t in fast.timings.items()]
    setup.notes[f"student, optimised, {precision}, batch {batch}"] = f"{fast.backend} ({'; '.join(timings)})"
    return fast


def _on_bfloat16_inputs(setup: Setup, student: Student, batch: int) -> Call:
    """A call that need not convert its inputs."""
    fast, short = _optimized(setup, student, batch, "bfloat16"), setup.inputs(batch).bfloat16()
    return lambda x: fast(short)


def _replayed(setup: Setup, student: Student, batch: int) -> Call:
    """The CUDA graph alone, for a program that writes its inputs into the placeholder."""
    captured = Fused(Stacked(student, torch.bfloat16)).captured(setup.inputs(batch))
    return lambda x: captured.graph.replay()


def _exported(setup: Setup, students: dict[str, Student]) -> Iterator[Row]:
    """Students as ONNX files with all measures."""
    try:
        required()
    except ValueError as error:
        setup.notes["ONNX"] = str(error)
        return
    inputs = setup.inputs(CALIBRATION)
    with tempfile.TemporaryDirectory() as folder:
        for name, student in students.items():
            for kind, int8 in EXPORTS.items():
                path = Path(folder) / f"{name}, {kind}.onnx"
                write(student, path, inputs[:64], int8=int8, calibration=inputs if int8 else None)
                yield f"{name}, {kind}, all measures", _always(onnx_call(path))


def onnx_call(path: Path) -> Call:
    """A file in ONNX Runtime, with as many threads as PyTorch has."""
    import onnx

    predict = runner(onnx.load(path), torch.get_num_threads())
    return lambda x: predict(x.numpy())
