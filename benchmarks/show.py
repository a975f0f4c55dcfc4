"""Tables of ``opu bench`` on the screen."""

from typing import Any

from rich.console import Console
from rich.table import Table

TEACHERS = "teacher, "


def fastest_teacher(ways: dict[str, Any], beside: str = "") -> str:
    """The fastest way to ask the teacher, among those in the precision of what it stands beside."""
    names = [name for name in ways if name.startswith(TEACHERS) and ("bfloat16" in name) == ("bfloat16" in beside)]
    return min(names, key=lambda name: float(ways[name]["seconds"]))


def spread(found: dict[str, Any]) -> str:
    """A time, and its range where there was more than one."""
    if found["times"] == 1:
        return f"{in_words(found['seconds'])} (once)"
    return f"{in_words(found['seconds'])} ({in_words(found['least'])} to {in_words(found['most'])})"


def show_predict(result: dict[str, Any], console: Console) -> None:
    """One table a batch size; ratios first."""
    for batch, ways in result["batches"].items():
        table = Table(
            title=f"batch of {batch}, {result['num_particles']} particles, {result['device']}", title_justify="left"
        )
        for column in ("", "loop / this", "fastest teacher / this", "this / one network", "time", "memory"):
            table.add_column(column, justify="left" if not column else "right")
        for name, found in ways.items():
            seconds = found["seconds"]
            table.add_row(
                name,
                _ratio(ways["teacher, loop"]["seconds"] / seconds),
                _ratio(ways[fastest_teacher(ways, beside=name)]["seconds"] / seconds),
                _ratio(seconds / ways["one network"]["seconds"]),
                spread(found),
                "" if found["megabytes"] is None else f"{found['megabytes']:.0f} MB",
            )
        console.print(table)
        best = fastest_teacher(ways).removeprefix(TEACHERS)
        console.print(f"The fastest teacher here: {best} (for bfloat16, the fastest in bfloat16).", highlight=False)
    for name, note in result["notes"].items():
        console.print(f"{name}: {note}", highlight=False)


def show_distill(result: dict[str, Any], console: Console) -> None:
    """Objectives, then growth; the cost of KL is 1."""
    size, epoch = result["usual"], result["inputs_per_epoch"]
    sizes = f"batch of {size['batch']}, {size['particles']} particles, {size['classes']} classes"
    table = Table(title=f"one step: {sizes}, {result['device']}", title_justify="left")
    for column in ("objective", "this / KL", "step", f"epoch of {epoch:,} inputs", "step from a bank"):
        table.add_column(column, justify="left" if column == "objective" else "right")
    of_kl = result["objectives"]["kl"]["seconds"]
    for name, found in result["objectives"].items():
        seconds = found["seconds"]
        spread = f"{in_words(seconds)} ({in_words(found['least'])} to {in_words(found['most'])})"
        banked = in_words(result["banked"][name]["seconds"]) if name in result["banked"] else ""
        table.add_row(name, _ratio(seconds / of_kl), spread, in_words(seconds * epoch / size["batch"]), banked)
    console.print(table)
    for what, rows in result["growth"].items():
        table = Table(title=f"growth with {what}", title_justify="left")
        table.add_column(what, justify="right")
        for name in rows[0]["seconds"]:
            table.add_column(name, justify="right")
        for row in rows:
            table.add_row(str(row["size"][what]), *(in_words(seconds) for seconds in row["seconds"].values()))
        console.print(table)
    for key, words in (("alone", ""), ("alone_recorded", ", recorded")):
        if key in result:
            mmd, kl = result[key]["mmd"], result[key]["kl"]
            console.print(
                f"With 1,000 classes, without teacher and network{words}: MMD costs {_ratio(mmd / kl)} of KL "
                f"({in_words(mmd)} against {in_words(kl)}).",
                highlight=False,
            )
    if "full" in result:
        whole = result["full"]
        console.print(
            f"All of MNIST, from a trained teacher to a calibrated student: {in_words(whole['seconds'])}; accuracy "
            f"{whole['accuracy']:.2f} % (teacher {whole['teacher_accuracy']:.2f} %).",
            highlight=False,
        )


def _ratio(value: float) -> str:
    return f"{value:,.0f}x" if value >= 10 else f"{value:.2g}x"


def in_words(seconds: float) -> str:
    """Three digits and a unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
