"""Tables of ``opu bench`` in the terminal."""

from typing import Any

from rich.console import Console

from opu.tables import print_table
from opu.terminal import say

TEACHERS = "teacher, "


def fastest_teacher(rows: dict[str, Any], beside: str = "") -> str:
    """The name of the fastest teacher in the precision of the row that it is compared with."""
    names = [name for name in rows if name.startswith(TEACHERS) and ("bfloat16" in name) == ("bfloat16" in beside)]
    return min(names, key=lambda name: float(rows[name]["seconds"]))


def show_predict(result: dict[str, Any], console: Console) -> None:
    """Print one table for each batch size; ratios come first."""
    header = ("", "loop / this", "fastest teacher / this", "this / one network", "time", "memory")
    for batch, rows in result["batches"].items():
        lines = []
        for name, found in rows.items():
            seconds = found["seconds"]
            ratios = (
                rows["teacher, loop"]["seconds"] / seconds,
                rows[fastest_teacher(rows, beside=name)]["seconds"] / seconds,
                seconds / rows["one network"]["seconds"],
            )
            memory = "" if found["megabytes"] is None else f"{found['megabytes']:.0f} MB"
            lines.append((name, *map(ratio, ratios), spread(found), memory))
        title = f"batch of {batch}, {result['num_particles']} particles, {result['device']}"
        print_table(console, header, lines, title=title)
        best = fastest_teacher(rows).removeprefix(TEACHERS)
        say(console, f"The fastest teacher here: {best} (for bfloat16, the fastest in bfloat16).")
    for name, note in result["notes"].items():
        say(console, f"{name}: {note}")


def show_distill(result: dict[str, Any], console: Console) -> None:
    """Print the cost of each objective as a multiple of KL's, then how it grows."""
    size, epoch = result["usual"], result["inputs_per_epoch"]
    of_kl = result["objectives"]["kl"]["seconds"]
    lines = []
    for name, found in result["objectives"].items():
        seconds = found["seconds"]
        banked = in_words(result["banked"][name]["seconds"]) if name in result["banked"] else ""
        lines.append((name, ratio(seconds / of_kl), spread(found), in_words(seconds * epoch / size["batch"]), banked))
    header = ("objective", "this / KL", "step", f"epoch of {epoch:,} inputs", "step from a bank")
    sizes = f"batch of {size['batch']}, {size['particles']} particles, {size['classes']} classes"
    print_table(console, header, lines, title=f"one step: {sizes}, {result['device']}")
    for what, rows in result["growth"].items():
        grown = [(str(row["size"][what]), *map(in_words, row["seconds"].values())) for row in rows]
        print_table(console, (what, *rows[0]["seconds"]), grown, title=f"growth with {what}")
    for key, words in (("alone", ""), ("alone_captured", ", as CUDA graphs")):
        if key in result:
            mmd, kl = result[key]["mmd"], result[key]["kl"]
            say(
                console,
                f"With 1,000 classes, without teacher and network{words}: MMD costs {ratio(mmd / kl)} of KL "
                f"({in_words(mmd)} against {in_words(kl)}).",
            )
    if "full" in result:
        full = result["full"]
        say(
            console,
            f"All of MNIST, from a trained teacher to a calibrated student: {in_words(full['seconds'])}; accuracy "
            f"{full['accuracy']:.2f} % (teacher {full['teacher_accuracy']:.2f} %).",
        )


def spread(found: dict[str, Any]) -> str:
    """A time and its range, or a time alone if it was measured once."""
    if found.get("times") == 1:
        return f"{in_words(found['seconds'])} (once)"
    return f"{in_words(found['seconds'])} ({in_words(found['least'])} to {in_words(found['most'])})"


def ratio(value: float) -> str:
    """A ratio with two digits, or with all digits before the point."""
    return f"{value:,.0f}x" if value >= 10 else f"{value:.2g}x"


def in_words(seconds: float) -> str:
    """A time with three digits and a unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
