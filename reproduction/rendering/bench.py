"""The tables of speed, most of them on ``docs/performance.md``."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.show import fastest_teacher, in_words, ratio, spread
from opu.measures import named
from opu.tables import markdown_table
from reproduction.cells import number_of
from reproduction.results import read_one

LARGE = "10000"
COMPARED = "teacher, one mask per particle"  # the fastest before any of ours
Record = dict[str, Any]
Goal = tuple[str, str, str, bool]


def _bench(results: Path, name: str) -> Record:
    return read_one(results, f"bench-{name}.json", f"python -m benchmarks.{name} --record")


def _bench_on(results: Path, name: str, device: str, options: str = "") -> Record:
    command = f"opu bench {name} --device {device}{options} --record"
    return read_one(results, f"bench-{name}-{device}.json", command)


def predict(device: str) -> Callable[[Path], str]:
    """Ratios at the larger batch, and the time of one input."""

    def table(results: Path) -> str:
        bench = _bench_on(results, "predict", device)
        many, one = bench["batches"][LARGE], bench["batches"]["1"]
        header = ["", "loop / this", "fastest teacher / this", "this / one network", "10,000 inputs (range)"]
        lines = []
        for name, found in many.items():
            seconds = found["seconds"]
            best = many[fastest_teacher(many, beside=name)]["seconds"]
            ratios = (
                many["teacher, loop"]["seconds"] / seconds,
                best / seconds,
                seconds / many["one network"]["seconds"],
            )
            memory = "" if found["megabytes"] is None else f"{found['megabytes']:.0f} MB"
            lines.append([name, *map(ratio, ratios), spread(found), memory, in_words(one[name]["seconds"])])
        return f"{markdown_table([*header, 'memory', 'one input'], lines)}\n\n{_machine(bench)}"

    return table


def kernel(results: Path) -> str:
    """Where the time of a student in bfloat16 goes."""
    bench = _bench(results, "kernel")
    header = [f"{bench['rows']:,} inputs", ""]
    lines = [[what, f"{found:.1f} us"] for what, found in bench["microseconds"].items()]
    return f"{markdown_table(header, lines)}\n\n{_machine({**bench, 'device': 'cuda'})}"


def distill(device: str) -> Callable[[Path], str]:
    """What a step costs by objective, and how it grows."""

    def table(results: Path) -> str:
        bench = _bench_on(results, "distill", device)
        size, of_kl = bench["usual"], bench["objectives"]["kl"]["seconds"]
        steps = bench["inputs_per_epoch"] / size["batch"]
        lines = []
        for name, found in bench["objectives"].items():
            seconds = found["seconds"]
            banked = in_words(bench["banked"][name]["seconds"]) if name in bench["banked"] else ""
            lines.append([name, ratio(seconds / of_kl), spread(found), in_words(steps * seconds), banked])
        header = ["objective", "step / KL", "step (range)", "an epoch of 60,000", "from a bank"]
        sizes = f"batch of {size['batch']}, {size['particles']} particles, {size['classes']} classes"
        grown = [
            [f"{row['size'][what]:,} {what}", *map(in_words, row["seconds"].values())]
            for what, rows in bench["growth"].items()
            for row in rows
        ]
        names = next(iter(bench["growth"].values()))[0]["seconds"]
        return (
            f"{markdown_table(header, lines)}\n\nUnless said otherwise: {sizes}.\n\n{markdown_table(['', *names], grown)}"
            f"\n\n{_machine(bench)}"
        )

    return table


def compressed(results: Path) -> str:
    """Drift, size and time of compressed students."""
    bench = _bench(results, "compressed")
    entropy, information, novelty = named("E", "MI", "N")
    whole = bench["rows"]["float32"]
    sets = [name for name in whole["measures"][novelty] if name not in ("spearman", "errors")]
    header = ["student", "accuracy", "errors by E", *(f"{name.replace('_', ' ')} by N" for name in sets)]
    lines = []
    for name, row in bench["rows"].items():
        measured = row["measures"]
        auroc = [measured[entropy]["errors"][1], *(measured[novelty][each][1] for each in sets)]
        ranks = ", ".join(f"{measured[each]['spearman']:.3f}" for each in (entropy, information, novelty))
        size = f"{row['kilobytes']:,.0f}, {row['gzipped_kilobytes']:,.0f}"
        found = [f"{row['accuracy'][1]:.2f}", *(f"{value:.1f}" for value in auroc)]
        lines.append([name, *found, ranks, size, f"{row['seconds'] / whole['seconds']:.2f}"])
    header += ["rank correlation of E, MI, N", "kB, gzipped", "time / float32"]
    return f"{markdown_table(header, lines)}\n\n{_machine(bench)}"


def objectives(results: Path) -> str:
    """Exact against sampled MMD."""
    bench = _bench(results, "objectives")
    size = bench["settings"]
    sizes = f"{size['inputs']} inputs x {size['particles']} particles x {size['classes']} classes"
    lines = []
    for name, row in bench["kernels"].items():
        low, high = row["ratio_range"]
        seconds = [f"{1e3 * row['sampled_seconds']:.0f} ms", f"{1e3 * row['exact_seconds']:.1f} ms"]
        values = [f"{row['exact_value']:.5f}", f"{row['sampled_value']:.5f} +- {row['standard_error']:.5f}"]
        found = f"**{row['ratio']:.0f}x** ({low:.0f} to {high:.0f})"
        lines.append([f"{name}, {row['terms']} terms", *seconds, found, *values])
    return markdown_table([sizes, "sampled MMD", "exact MMD", "ratio (range)", "exact value", "sampled value"], lines)


def fidelity(results: Path) -> str:
    """How long a report takes."""
    found = _bench(results, "fidelity")
    made = found["environment"]
    return (
        f"A report on {found['inputs']:,} inputs with {found['particles']} particles and {found['classes']} classes takes "
        f"{found['seconds']:.0f} s ({number_of(made['threads'], 'thread')}, {made['cpu']}; `python -m benchmarks.fidelity`)."
    )


def goals(results: Path) -> str:
    """What we wanted, and what was measured."""
    found = [*_cpu_goals(results), *_gpu_goals(results), *_distill_goals(results)]
    lines = [[what, goal, measured, "met" if met else "**not met**"] for what, goal, measured, met in found]
    return markdown_table(["", "goal", "measured", ""], lines)


def _cpu_goals(results: Path) -> list[Goal]:
    bench = _bench_on(results, "predict", "cpu")
    many, one = bench["batches"][LARGE], bench["batches"]["1"]
    seconds = {name: found["seconds"] for name, found in many.items()}
    best = fastest_teacher(many)
    student, fastest = seconds["student, optimised"], seconds[best]
    int8, trunk_int8 = (f"{name}, ONNX int8, all measures" for name in ("student", "student, one trunk"))
    where = "CPU, 10,000 inputs: "
    ratios = [
        ("loop / float32 student", 500.0, seconds["teacher, loop"] / student),
        ("one mask per particle / float32 student", 90.0, seconds[COMPARED] / student),
        (f"fastest teacher ({best.removeprefix('teacher, ')}) / float32 student", 90.0, fastest / student),
        ("fastest teacher / int8 student with all measures", 250.0, fastest / seconds[int8]),
        ("fastest teacher / int8 student of one trunk, all measures", 500.0, fastest / seconds[trunk_int8]),
    ]
    found: list[Goal] = [(where + what, f"{goal:.0f}x", ratio(value), value >= goal) for what, goal, value in ratios]
    cost = seconds["student, one trunk"] / min(seconds["one network"], seconds["BDK"])
    found.append((where + "student of one trunk / one network", "1.15x", f"{cost:.2f}x", cost <= 1.15))
    for words, name, goal in (("float32", "student, ONNX, all measures", 45e-6), ("int8", int8, 30e-6)):
        latency = one[name]["seconds"]
        found.append((f"CPU, one input, all measures, {words}", in_words(goal), in_words(latency), latency <= goal))
    return found


def _gpu_goals(results: Path) -> list[Goal]:
    many = _bench_on(results, "predict", "cuda")["batches"][LARGE]
    worst = _bench(results, "bfloat16")["worst"]
    student = "student, optimised, bfloat16"
    graph, halved, call = (many[student + end]["seconds"] for end in (", inputs in place", ", inputs in bfloat16", ""))
    teacher = many[fastest_teacher(many, "bfloat16")]["seconds"]
    return [
        ("H200, 10,000 inputs in bfloat16, the CUDA graph alone", "60 us", in_words(graph), graph <= 60e-6),
        ("H200, a call of `opu.optimize`, inputs in bfloat16", "60 us", in_words(halved), halved <= 60e-6),
        ("H200, a call of `opu.optimize`, inputs in float32", "60 us", in_words(call), call <= 60e-6),
        ("largest change of any AUROC in bfloat16, one seed", "0.1", f"{worst:.2f}", worst <= 0.1),
        ("H200, fastest teacher in bfloat16 / CUDA graph", "200x", ratio(teacher / graph), teacher >= 200 * graph),
    ]


def _distill_goals(results: Path) -> list[Goal]:
    found: list[Goal] = []
    for device, words, goal in (("cuda", "H200", 60.0), ("cpu", "CPU", 600.0)):
        bench = _bench_on(results, "distill", device, " --full")
        if "full" in bench:
            whole = bench["full"]
            said = f"{whole['seconds']:.0f} s ({whole['accuracy']:.2f} %, teacher {whole['teacher_accuracy']:.2f} %)"
            size = f"{whole.get('particles', 64)} particles a step"
            what = f"{words}, MNIST from a trained teacher to a calibrated student, {size}"
            found.append((what, f"{goal:.0f} s", said, whole["seconds"] <= goal))
        large = next(row for row in bench["growth"]["classes"] if row["size"]["classes"] == 1000)["seconds"]
        costs = {"a step of exact MMD / of KL, 1,000 classes": large}
        for key, how in (("alone_captured", ", captured as a CUDA graph"), ("alone", "")):
            if key in bench:
                costs[f"exact MMD / KL by themselves, 1,000 classes{how}"] = bench[key]
        for what, seconds in costs.items():
            value = seconds["mmd"] / seconds["kl"]
            found.append((f"{words}, {what}", "3x", ratio(value), value <= 3))
    return found


def _machine(bench: Record) -> str:
    known = bench["environment"]
    instructions = f" ({known['cpu_capability']})" if "cpu_capability" in known else ""
    on_cpu = f"{known['cpu']}{instructions}, {number_of(known['threads'], 'thread')}"
    return f"{known['gpu'] if bench.get('device') == 'cuda' else on_cpu}, torch {known['versions']['torch']}."


TABLES: dict[str, Callable[[Path], str]] = {
    "bench-goals": goals,
    "bench-predict-cpu": predict("cpu"),
    "bench-predict-cuda": predict("cuda"),
    "bench-kernel": kernel,
    "bench-distill-cpu": distill("cpu"),
    "bench-distill-cuda": distill("cuda"),
    "bench-compressed": compressed,
    "bench-objectives": objectives,
    "bench-fidelity": fidelity,
}
