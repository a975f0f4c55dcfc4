"""``opu bench predict``: teachers, rivals and students on the same inputs, in one run."""

import copy
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import opu
from benchmarks.clock import take_turns
from benchmarks.passes import CompiledFolded, Folded, KeptUnits, Running, dropout_mlp, loop, vectorised
from opu.acceleration import Optimized, optimize
from opu.acceleration.fused import Fused
from opu.acceleration.stacked import Stacked
from opu.checks import first_line
from opu.environment import environment
from opu.files import write_json
from opu.students import Student
from opu.teachers import MCDropout
from reproduction.baselines import CategoricalStudent

FEATURES, HIDDEN, CLASSES = 784, (400, 400), 10
CHUNK = {"cuda": 100, "cpu": 4}  # particles in one product, where masks are in the weights
FEW = 20  # particles of ways that take minutes for all of them; their time grows in step
IN_PART = {"teacher, loop", "teacher, vectorised", "torch-uncertainty"}
CALIBRATION = 1000

Call = Callable[[Tensor], object]
Maker = Callable[[int], Call | None]  # of a call for batches of one size; None where this machine has no such way


def bench_predict(
    out: Path,
    *,
    device: str,
    num_particles: int,
    batches: list[int],
    rounds: int,
    compiled: bool,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Time every way at every batch size, and write the file.

    Args:
        out: The file.
        device: Where.
        num_particles: Of the teacher.
        batches: Sizes.
        rounds: How often each way is timed.
        compiled: Whether ``torch.compile`` is tried.
        say: Told what is being measured.
    """
    torch.manual_seed(0)
    calls, notes = _ways(device, num_particles, compiled, say)
    found: dict[str, Any] = {}
    inputs = torch.rand(max(batches), FEATURES, device=device)
    with torch.no_grad(), _single_precision(device):
        for batch in batches:
            say(f"batch of {batch}")
            x = inputs[:batch]
            few = min(FEW, num_particles)
            made = {name: make(batch) for name, make in calls.items()}
            ways = {name: partial(call, x) for name, call in made.items() if call is not None}
            part = dict.fromkeys(IN_PART & ways.keys(), num_particles / few)
            found[str(batch)] = take_turns(ways, rounds, heavy=part)
    result = {
        "device": device,
        "num_particles": num_particles,
        "particles_in_one_product": CHUNK[device],
        "network": {"features": FEATURES, "hidden": list(HIDDEN), "classes": CLASSES},
        "rounds": rounds,
        "batches": found,
        "notes": notes,
        "environment": environment(),
    }
    write_json(out, result)
    return result


@contextmanager
def _single_precision(device: str) -> Iterator[None]:
    """Float32 on a GPU as fast as its users run it, with TF32 in products."""
    before = torch.get_float32_matmul_precision()
    if device == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _ways(
    device: str, num_particles: int, compiled: bool, say: Callable[[str], None]
) -> tuple[dict[str, Maker], dict[str, str]]:
    """From a name to a maker of calls for one batch size; and what is not there, with the reason."""
    net = dropout_mlp(FEATURES, HIDDEN, CLASSES).to(device).eval()
    calls: dict[str, Maker] = {}
    notes: dict[str, str] = {}
    _teachers(calls, net, device, num_particles)
    if compiled:
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        ending = ", bfloat16" if device == "cuda" else ""
        calls[f"teacher, masks in the weights, compiled{ending}"] = _where_it_compiles(
            lambda: partial(CompiledFolded(net, dtype, CHUNK[device]), num_particles=num_particles), device, notes
        )
    calls["one network"] = _always(net)
    calls["BDK"] = _always(CategoricalStudent(net))
    _others(calls, notes, net, num_particles)
    students = {name: _student(shared, device) for name, shared in (("student", False), ("student, one trunk", True))}
    for name, student in students.items():
        calls[name] = _always(student)
        calls[f"{name}, all measures"] = _always(partial(_all_measures, student))
    pair = students["student"]
    if compiled:
        calls["student, compiled"] = _where_it_compiles(
            lambda: torch.compile(lambda x: _parts(pair(x)), dynamic=False), device, notes
        )
    calls["student, optimised"] = lambda batch: _optimised(pair, batch, device, notes, "float32", compiled)
    if device == "cuda":
        calls["student, optimised, bfloat16"] = lambda batch: _optimised(pair, batch, device, notes, "bfloat16", False)
        calls["student, optimised, bfloat16, inputs in bfloat16"] = lambda batch: _halved(pair, batch, device, notes)
        calls["student, optimised, bfloat16, inputs in place"] = lambda batch: _in_place(pair, batch, device)
    else:
        say("exports")
        _exports(calls, notes, students)
    return calls, notes


def _always(call: Call) -> Maker:
    return lambda batch: call


def _where_it_compiles(make: Callable[[], Call], device: str, notes: dict[str, str]) -> Maker:
    """Compiled for each batch size, which happens in the first call."""

    def maker(batch: int) -> Call | None:
        call = make()
        try:
            call(torch.rand(batch, FEATURES, device=device))
        except Exception as error:  # whatever a compiler may raise, or that there is none
            notes["torch.compile"] = f"{type(error).__name__}: {first_line(error)}"
            return None
        return call

    return maker


def _parts(q: opu.Dirichlet) -> tuple[Tensor, Tensor]:
    return q.mean, q.log_precision


def _student(shared_trunk: bool, device: str) -> Student:
    student = opu.students.mlp(FEATURES, CLASSES, HIDDEN, shared_trunk=shared_trunk).to(device)
    opu.calibrate(student, torch.rand(CALIBRATION, FEATURES, device=device))
    return student.eval()


def _all_measures(student: Student, x: Tensor) -> list[Tensor]:
    q = student(x)
    assert student.novelty is not None
    names = ("predictive_entropy", "expected_entropy", "mutual_information", "differential_entropy")
    found = [getattr(opu.measures, name)(q) for name in names]
    return [*found, student.novelty(q), student.novelty.p_value(q)]


def _optimised(
    student: Student, batch: int, device: str, notes: dict[str, str], precision: str, compiled: bool
) -> Optimized:
    fast = optimize(student, torch.rand(batch, FEATURES, device=device), precision=precision, compiled=compiled)
    tried = "; ".join(f"{name} {t if isinstance(t, str) else f'{1e6 * t:.0f} us'}" for name, t in fast.tried.items())
    notes[f"student, optimised, {precision}, batch {batch}"] = f"{fast.how} ({tried})"
    return fast


def _halved(student: Student, batch: int, device: str, notes: dict[str, str]) -> Call:
    """A call that need not convert its inputs."""
    fast, short = (
        _optimised(student, batch, device, notes, "bfloat16", False),
        torch.rand(batch, FEATURES, device=device),
    )
    short = short.bfloat16()
    return lambda x: fast(short)


def _in_place(student: Student, batch: int, device: str) -> Call:
    """The recording alone, for a program that writes its inputs where the recording reads them."""
    example = torch.rand(batch, FEATURES, device=device)
    recorded = Fused(Stacked(student, torch.bfloat16)).recorded(example)
    return lambda x: recorded.graph.replay()


def _teachers(calls: dict[str, Maker], net: nn.Sequential, device: str, num_particles: int) -> None:
    rows = 10_000 if device == "cuda" else 500
    chunk = CHUNK[device]
    each = MCDropout(net, memory_budget=2**32 if device == "cuda" else 2**28)
    shared = MCDropout(net, consistent=True, memory_budget=2**32 if device == "cuda" else 2**28)
    ways: dict[str, Call] = {
        "teacher, loop": lambda x: loop(net, x, min(FEW, num_particles)),
        "teacher, vectorised": lambda x: vectorised(each, x, min(FEW, num_particles), rows),
        "teacher, one mask per particle": lambda x: vectorised(shared, x, num_particles, rows),
        "teacher, masks in the weights": lambda x: Folded(net, torch.float32, chunk)(x, num_particles),
        "teacher, kept units": lambda x: KeptUnits(net, torch.float32, chunk)(x, num_particles),
    }
    if device == "cuda":
        ways["teacher, masks in the weights, bfloat16"] = lambda x: Folded(net, torch.bfloat16, chunk)(x, num_particles)
    for name, way in ways.items():
        calls[name] = _always(way)


def _others(calls: dict[str, Maker], notes: dict[str, str], net: nn.Sequential, num_particles: int) -> None:
    """Other libraries' predictions where they are installed."""
    try:
        from torch_uncertainty.methods import mc_dropout

        few = min(FEW, num_particles)
        # A copy, since its wrapper leaves dropout on; in a loop, since 500 copies of a batch would not fit.
        theirs = mc_dropout(copy.deepcopy(net), num_estimators=few, on_batch=False).eval()

        def torch_uncertainty(x: Tensor) -> object:
            found = Running()
            found.add(theirs(x).view(few, len(x), -1))
            return found.summary()

        calls["torch-uncertainty"] = _always(torch_uncertainty)
    except ImportError:
        notes["torch-uncertainty"] = "not installed"
    try:
        from laplace import Laplace
        from torch.utils.data import DataLoader, TensorDataset
    except ImportError:
        notes["laplace-torch"] = "not installed"
        return
    x = torch.rand(CALIBRATION, FEATURES, device=next(net.parameters()).device)
    posterior = Laplace(net, "classification", subset_of_weights="last_layer", hessian_structure="kron")
    posterior.fit(DataLoader(TensorDataset(x, torch.randint(CLASSES, (len(x),), device=x.device)), batch_size=500))
    calls["laplace-torch, probit"] = _always(partial(posterior, link_approx="probit"))


def _exports(calls: dict[str, Maker], notes: dict[str, str], students: dict[str, Student]) -> None:
    try:
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError:
        notes["ONNX"] = 'not installed; pip install "opu[onnx]"'
        return
    from opu.export import write

    inputs = torch.rand(CALIBRATION, FEATURES)
    with tempfile.TemporaryDirectory() as folder:
        for name, student in students.items():
            for words, int8 in (("ONNX", False), ("ONNX int8", True)):
                path = Path(folder) / "student.onnx"
                write(student, path, inputs[:64], int8=int8, calibration=inputs if int8 else None, overwrite=True)
                options = onnxruntime.SessionOptions()
                options.intra_op_num_threads = torch.get_num_threads()
                session = onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
                key = session.get_inputs()[0].name

                def answer(x: Tensor, session: Any = session, key: str = key) -> Any:
                    return session.run(None, {key: x.numpy()})

                calls[f"{name}, {words}, all measures"] = _always(answer)
