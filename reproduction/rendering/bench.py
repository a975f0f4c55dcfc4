"""The tables of ``docs/performance.md``."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.show import fastest_teacher, in_words, spread
from reproduction.rendering.shared import read

LARGE = "10000"
COMPARED = "teacher, one mask per particle"  # the fastest before any of ours


def predict_table(device: str) -> Callable[[Path], str]:
    """Ratios at the larger batch, and the time of one input."""

    def table(results: Path) -> str:
        (bench,) = read(results, f"bench-predict-{device}.json", f"opu bench predict --device {device}")
        many, one = bench["batches"][LARGE], bench["batches"]["1"]
        loop = many["teacher, loop"]["seconds"]
        lines = [
            "| | loop / this | fastest teacher / this | this / one network | 10,000 inputs (range) | memory | one input |",
            "| --- | --- | --- | --- | --- | --- | --- |",
        ]
        for name, found in many.items():
            seconds = found["seconds"]
            cells = [
                times(loop / seconds),
                times(many[fastest_teacher(many, beside=name)]["seconds"] / seconds),
                times(seconds / many["one network"]["seconds"]),
                spread(found),
                "" if found["megabytes"] is None else f"{found['megabytes']:.0f} MB",
                in_words(one[name]["seconds"]),
            ]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
        return "\n".join(lines) + "\n\n" + _machine(bench)

    return table


def kernel_table(results: Path) -> str:
    """Where the time of a student in bfloat16 goes."""
    (bench,) = read(results, "bench-kernel.json", "python -m benchmarks.kernel")
    lines = [f"| {what} | {found:.1f} us |" for what, found in bench["microseconds"].items()]
    return (
        "\n".join([f"| {bench['rows']:,} inputs | |", "| --- | --- |", *lines])
        + "\n\n"
        + _machine({**bench, "device": "cuda"})
    )


def distill_table(device: str) -> Callable[[Path], str]:
    """What a step costs by objective, and how it grows."""

    def table(results: Path) -> str:
        (bench,) = read(results, f"bench-distill-{device}.json", f"opu bench distill --device {device}")
        of_kl, size = bench["objectives"]["kl"]["seconds"], bench["usual"]
        epoch = bench["inputs_per_epoch"] / size["batch"]
        lines = [
            "| objective | step / KL | step (range) | an epoch of 60,000 | from a bank |",
            "| --- |" + " --- |" * 4,
        ]
        for name, found in bench["objectives"].items():
            seconds = found["seconds"]
            spread = f"{in_words(seconds)} ({in_words(found['least'])} to {in_words(found['most'])})"
            banked = in_words(bench["banked"][name]["seconds"]) if name in bench["banked"] else ""
            lines.append(f"| {name} | {times(seconds / of_kl)} | {spread} | {in_words(epoch * seconds)} | {banked} |")
        grown = []
        for what, rows in bench["growth"].items():
            for row in rows:
                cells = " | ".join(in_words(seconds) for seconds in row["seconds"].values())
                grown.append(f"| {row['size'][what]:,} {what} | {cells} |")
        names = " | ".join(next(iter(bench["growth"].values()))[0]["seconds"])
        sizes = f"batch of {size['batch']}, {size['particles']} particles, {size['classes']} classes"
        return "\n".join(
            [
                *lines,
                "",
                f"Unless said otherwise: {sizes}.",
                "",
                f"| | {names} |",
                "| --- |" + " --- |" * 3,
                *grown,
                "",
                "",
            ]
        ) + _machine(bench)

    return table


def compressed_table(results: Path) -> str:
    """Drift, size and time of compressed students."""
    (bench,) = read(results, "bench-compressed.json", "python -m benchmarks.compressed")
    whole = bench["rows"]["float32"]
    sets = [name for name in whole["measures"]["novelty"] if name not in ("spearman", "errors")]
    head = [
        "student",
        "accuracy",
        "errors by E",
        *(f"{name.replace('_', ' ')} by N" for name in sets),
        "rank correlation of E, MI, N",
        "kB, gzipped",
        "time / float32",
    ]
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " --- |" * (len(head) - 1)]
    for name, row in bench["rows"].items():
        measured = row["measures"]
        ranks = [measured[m]["spearman"] for m in ("predictive_entropy", "mutual_information", "novelty")]
        cells = [
            f"{row['accuracy'][1]:.2f}",
            f"{measured['predictive_entropy']['errors'][1]:.1f}",
            *(f"{measured['novelty'][each][1]:.1f}" for each in sets),
            ", ".join(f"{rank:.3f}" for rank in ranks),
            f"{row['kilobytes']:,.0f}, {row['gzipped_kilobytes']:,.0f}",
            f"{row['seconds'] / whole['seconds']:.2f}",
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n\n" + _machine(bench)


def goals_table(results: Path) -> str:
    """What we wanted, and what was measured."""
    rows = [*_cpu_goals(results), *_gpu_goals(results), *_distill_goals(results)]
    lines = ["| | goal | measured | |", "| --- | --- | --- | --- |"]
    return "\n".join(
        lines
        + [f"| {what} | {goal} | {found} | {'met' if met else '**not met**'} |" for what, goal, found, met in rows]
    )


Goal = tuple[str, str, str, bool]


def _cpu_goals(results: Path) -> list[Goal]:
    (bench,) = read(results, "bench-predict-cpu.json", "opu bench predict")
    many, one = bench["batches"][LARGE], bench["batches"]["1"]
    best = fastest_teacher(many)
    seconds = {name: found["seconds"] for name, found in many.items()}
    student = seconds["student, optimised"]
    int8, trunk_int8 = (f"{name}, ONNX int8, all measures" for name in ("student", "student, one trunk"))
    where = "CPU, 10,000 inputs: "
    rows = [
        (where + "loop / float32 student", 500.0, seconds["teacher, loop"] / student),
        (where + "one mask per particle / float32 student", 90.0, seconds[COMPARED] / student),
        (
            where + f"fastest teacher ({best.removeprefix('teacher, ')}) / float32 student",
            90.0,
            seconds[best] / student,
        ),
        (where + "fastest teacher / int8 student with all measures", 250.0, seconds[best] / seconds[int8]),
        (
            where + "fastest teacher / int8 student of one trunk, all measures",
            500.0,
            seconds[best] / seconds[trunk_int8],
        ),
    ]
    found: list[Goal] = [(what, f"{goal:.0f}x", times(value), value >= goal) for what, goal, value in rows]
    cost = seconds["student, one trunk"] / min(seconds["one network"], seconds["BDK"])
    found.append((where + "student of one trunk / one network", "1.15x", f"{cost:.2f}x", cost <= 1.15))
    for words, name, goal in (("float32", "student, ONNX, all measures", 45e-6), ("int8", int8, 30e-6)):
        latency = one[name]["seconds"]
        found.append((f"CPU, one input, all measures, {words}", in_words(goal), in_words(latency), latency <= goal))
    return found


def _gpu_goals(results: Path) -> list[Goal]:
    (bench,) = read(results, "bench-predict-cuda.json", "opu bench predict --device cuda")
    (halved,) = read(results, "bench-bfloat16.json", "python -m benchmarks.bfloat16")
    many = bench["batches"][LARGE]
    ours = many["student, optimised, bfloat16, inputs in place"]["seconds"]
    door, halved_door = (many[f"student, optimised, bfloat16{end}"]["seconds"] for end in ("", ", inputs in bfloat16"))
    found = [
        ("H200, 10,000 inputs in bfloat16, the recording alone", "60 us", in_words(ours), ours <= 60e-6),
        ("H200, a call of `opu.optimize`, inputs in bfloat16", "60 us", in_words(halved_door), halved_door <= 60e-6),
        ("H200, a call of `opu.optimize`, inputs in float32", "60 us", in_words(door), door <= 60e-6),
        ("largest change of any AUROC in bfloat16, one seed", "0.1", f"{halved['worst']:.2f}", halved["worst"] <= 0.1),
    ]
    teacher = many[fastest_teacher(many, "bfloat16")]["seconds"]
    ratio = ("H200, fastest teacher in bfloat16 / recording", "200x", times(teacher / ours), teacher >= 200 * ours)
    return [*found, ratio]


def _distill_goals(results: Path) -> list[Goal]:
    found: list[Goal] = []
    for device, words, goal in (("cuda", "H200", 60.0), ("cpu", "CPU", 600.0)):
        (bench,) = read(results, f"bench-distill-{device}.json", f"opu bench distill --device {device} --full")
        if "full" in bench:
            whole = bench["full"]
            said = f"{whole['seconds']:.0f} s ({whole['accuracy']:.2f} %, teacher {whole['teacher_accuracy']:.2f} %)"
            size = f"{whole.get('particles', 64)} particles a step"
            what = f"{words}, MNIST from a trained teacher to a calibrated student, {size}"
            found.append((what, f"{goal:.0f} s", said, whole["seconds"] <= goal))
        large = next(row for row in bench["growth"]["classes"] if row["size"]["classes"] == 1000)["seconds"]
        ratio = large["mmd"] / large["kl"]
        found.append((f"{words}, a step of exact MMD / of KL, 1,000 classes", "3x", times(ratio), ratio <= 3))
        for key, how in (("alone_recorded", ", recorded as steps are"), ("alone", "")):
            if key in bench:
                alone = bench[key]["mmd"] / bench[key]["kl"]
                what = f"{words}, exact MMD / KL by themselves, 1,000 classes{how}"
                found.append((what, "3x", times(alone), alone <= 3))
    return found


def times(value: float) -> str:
    """A ratio with two or three digits."""
    return f"{value:,.0f}x" if value >= 100 else f"{value:.2g}x" if value < 10 else f"{value:.0f}x"


def _machine(bench: dict[str, Any]) -> str:
    known = bench["environment"]
    instructions = f" ({known['cpu_capability']})" if "cpu_capability" in known else ""
    on_cpu = f"{known['cpu']}{instructions}, {known['threads']} threads"
    where = known["gpu"] if bench.get("device") == "cuda" else on_cpu
    return f"{where}, torch {known['versions']['torch']}."
