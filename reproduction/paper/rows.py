"""The rows of the tables: what is distilled from what, by which divergence and preset."""

from dataclasses import dataclass, replace

from opu.objectives import default


@dataclass(frozen=True)
class Row:
    """One row of a table.

    Attributes:
        name: The name in the paper, with the preset if there are several.
        kind: ``pointwise`` (the teacher with the best Dirichlet for each input), ``opu``, or a baseline.
        teacher: ``mc_dropout``, ``sgld`` or ``ensemble``; none for a prior network.
        divergence: ``kl``, ``emd``, ``mmd``, or a sum for our own recipe.
        preset: One of :data:`reproduction.paper.presets.PRESETS`; a pointwise row sees particles clamped by it.
        family: What a student predicts; the paper's is the Dirichlet.
    """

    name: str
    kind: str
    teacher: str = ""
    divergence: str = ""
    preset: str = ""
    family: str = "dirichlet"

    @property
    def in_paper(self) -> str | None:
        """The name of the paper's row that this one stands beside; our own additions stand alone."""
        ours = self.preset == "robust" or self.name.endswith("(augmented)") or self.kind.startswith("dpn_mlp")
        ours |= self.teacher == "ensemble"
        return None if ours else self.name.split(" ")[0]

    def for_classes(self, num_classes: int) -> "Row":
        """The row with its divergence spelt out."""
        return replace(self, divergence=default(num_classes, self.family)) if self.divergence == ROBUST else self


TEACHERS = {"MCDP": "mc_dropout", "SGLD": "sgld"}
# Our own recipe, whose sum depends on the number of classes.
ROBUST = "default"
# The end of the name of a table whose OOD inputs are of classes that its teachers have not seen.
HELD_OUT = "-held-out"
# The end of the name of a table that holds our recipe against its teachers, with a deep ensemble, and photographs as OOD.
ROBUST_TABLE = "-robust"


def _pointwise(short: str, divergences: tuple[str, ...]) -> list[Row]:
    plain = [Row(f"{short}-{d.upper()}", "pointwise", TEACHERS[short], d) for d in divergences]
    return [*plain, Row(f"{short}-KL (clamped)", "pointwise", TEACHERS[short], "kl", "authors")]


def _students(short: str, divergences: tuple[str, ...]) -> list[Row]:
    return [
        Row(f"OPU-{short}-{d.upper()} ({preset})", "opu", TEACHERS[short], d, preset)
        for d in divergences
        for preset in (("paper", "authors") if d == "kl" else ("paper", "paper-sgd", "authors"))
    ] + [Row(f"OPU-{short} (robust)", "opu", TEACHERS[short], ROBUST, "robust")]


def _logistic_normal(short: str, teacher: str) -> Row:
    return Row(f"OPU-{short} (robust, logistic-normal)", "opu", teacher, ROBUST, "robust", "logistic_normal")


MNIST = [
    *_pointwise("MCDP", ("kl", "emd", "mmd")),
    *_students("MCDP", ("kl", "emd", "mmd")),
    *_pointwise("SGLD", ("kl", "emd", "mmd")),
    *_students("SGLD", ("kl", "emd", "mmd")),
    Row("BDK-SGLD (online)", "bdk_online", "sgld"),
    Row("BDK-SGLD (augmented)", "bdk", "sgld", preset="bdk-sgld"),
    Row("BDK-MCDP (augmented)", "bdk", "mc_dropout", preset="bdk-mcdp"),
    Row("BDK-DIR-SGLD (plain)", "bdk_dir", "sgld", "kl", "paper"),
    Row("BDK-DIR-SGLD (augmented)", "bdk_dir", "sgld", "kl", "robust"),
    Row("DPN (VGG)", "dpn_vgg"),
    Row("DPN (VGG, for errors)", "dpn_vgg_errors"),
    Row("DPN (MLP)", "dpn_mlp"),
    Row("DPN (MLP, for errors)", "dpn_mlp_errors"),
]

EMNIST = [
    *_pointwise("MCDP", ("kl", "mmd")),
    *_students("MCDP", ("kl", "mmd")),
    Row("BDK-MCDP (augmented)", "bdk", "mc_dropout", preset="robust"),
]

# Each row of these trains its teacher anew without some classes, so they hold fewer: teachers, the divergence that the paper
# recommends, our own recipe, and the baselines.
_HELD_OUT: tuple[str, ...] = ("MCDP-KL", "OPU-MCDP-MMD (paper-sgd)", "OPU-MCDP-MMD (authors)", "OPU-MCDP (robust)")
_HELD_OUT += ("SGLD-KL", "OPU-SGLD-MMD (paper-sgd)", "OPU-SGLD (robust)", "BDK-SGLD (augmented)")
_HELD_OUT += ("BDK-MCDP (augmented)", "BDK-DIR-SGLD (augmented)", "DPN (VGG)", "DPN (MLP)")
_ENSEMBLE = [
    Row("ENS-KL", "pointwise", "ensemble", "kl"),
    Row("OPU-ENS (robust)", "opu", "ensemble", ROBUST, "robust"),
    _logistic_normal("ENS", "ensemble"),
]
_ROBUST = (
    "MCDP-KL",
    "OPU-MCDP-MMD (paper-sgd)",
    "OPU-MCDP (robust)",
    "SGLD-KL",
    "OPU-SGLD-MMD (paper-sgd)",
    "OPU-SGLD (robust)",
)


def _robust(rows: list[Row]) -> list[Row]:
    """The rows of our recipe and their teachers, each student in both families."""
    found = []
    for row in (row for row in rows if row.name in _ROBUST):
        short = row.name.removeprefix("OPU-").removesuffix(" (robust)")
        found += [row, *([_logistic_normal(short, row.teacher)] if row.preset == "robust" else [])]
    return [*found, *_ENSEMBLE]


TABLES = {
    "mnist": MNIST,
    "emnist": EMNIST,
    f"mnist{HELD_OUT}": [row for row in MNIST if row.name in _HELD_OUT],
    f"emnist{HELD_OUT}": [row for row in EMNIST if row.name in _HELD_OUT],
    f"mnist{ROBUST_TABLE}": _robust(MNIST),
    f"emnist{ROBUST_TABLE}": _robust(EMNIST),
}


def select(table: str, wanted: list[str] | None) -> list[Row]:
    """The rows whose name contains one of the texts, or all of them."""
    rows = TABLES[table]
    if not wanted:
        return rows
    for text in wanted:
        if not any(text.lower() in row.name.lower() for row in rows):
            names = ", ".join(row.name for row in rows)
            raise ValueError(f"no row of {table} has {text!r} in its name; the rows are {names}.")
    return [row for row in rows if any(text.lower() in row.name.lower() for text in wanted)]
