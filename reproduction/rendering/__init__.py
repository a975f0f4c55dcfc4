"""Tables in Markdown from result files, written between markers in the documents; no number is typed by hand.

A document holds ``<!-- table: NAME -->`` and ``<!-- end -->``; what stands between them is rendered from ``results/``.
"""

import re
import statistics
from collections.abc import Callable
from pathlib import Path

from reproduction.rendering import bench, recipes, studies
from reproduction.rendering.experiments import OURS, SHORT, SUMMARY, one_seed_seconds, reproduced, rivals, tabular
from reproduction.rendering.shared import detection_table, read, spread

_BLOCK = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def render(text: str, results: Path) -> str:
    """A document with all its tables made anew."""

    def fill(block: re.Match[str]) -> str:
        name = block[2]
        if name not in TABLES:
            raise ValueError(f"a document asks for the table {name!r}; those that exist are {', '.join(TABLES)}.")
        return f"{block[1]}{TABLES[name](results)}\n{block[3]}"

    return _BLOCK.sub(fill, text)


def demo_table(results: Path) -> str:
    """The demo over several seeds, with accuracy and speed."""
    runs = read(results, "demo-seed*.json", "for s in 0 1 2 3 4; do opu demo --seed $s --out runs/demo-$s; done")
    accuracy = {who: spread([run["accuracy"][who] for run in runs]) for who in ("teacher", "student")}
    speed, vectorised = (statistics.median(run["speedup"][how] for run in runs) for how in ("naive_loop", "vectorised"))
    threads = runs[0]["environment"]["threads"]
    return (
        f"{detection_table(runs)}\n\n"
        f"Accuracy: teacher {accuracy['teacher']}, student {accuracy['student']}. One pass of the student is {speed:.0f} "
        f"times as fast as {runs[0]['speedup']['num_particles']} passes in a loop and {vectorised:.0f} times as fast as the "
        f"same passes vectorised (medians; {threads} thread{'' if threads == 1 else 's'}, {runs[0]['environment']['cpu']})."
    )


TABLES: dict[str, Callable[[Path], str]] = {
    "demo": demo_table,
    "bench-objectives": studies.bench_table,
    "novelty-shares": studies.shares_table,
    "novelty-fresh": studies.fresh_shares_table,
    "mnist-small": studies.mnist_small_table,
    "first-steps": studies.first_steps_table,
    "critic-rate": studies.critic_rate_table,
    "prior-network": studies.prior_network_table,
    "bdk": studies.bdk_table,
    "mnist-one-seed": one_seed_seconds,
    "steady-kl": studies.steady_kl_table,
    "robust-1": recipes.robust_table(1),
    "robust-2": recipes.robust_table(2),
    "robust-3": recipes.robust_table(3),
    "robust-4": recipes.robust_table(4),
    "robust-5": recipes.robust_table(5),
    "robust-6": recipes.robust_table(6),
    "many-classes": recipes.many_classes_table,
    "class-counts": recipes.class_counts_table,
    "bench-fidelity": recipes.fidelity_bench,
    "robust-scores": recipes.robust_scores_table,
    "novelty-calibration": recipes.calibration_table,
    "small-recipe": recipes.small_recipe_table,
    "tabular-search": studies.tabular_search_table,
    "tabular-novelty": studies.tabular_novelty_table,
    "blr-beside": tabular("blr", "beside"),
    "blr-detection": tabular("blr", "detection"),
    "blr-gaps": tabular("blr", "gaps"),
    "blr-mixing": tabular("blr", "mixing"),
    "blr-speed": tabular("blr", "speed"),
    "gp-beside": tabular("gp", "beside"),
    "gp-detection": tabular("gp", "detection"),
    "gp-gaps": tabular("gp", "gaps"),
    "gp-mixing": tabular("gp", "mixing"),
    "gp-bound": tabular("gp", "bound"),
    "gp-speed": tabular("gp", "speed"),
    "mnist-beside": reproduced("mnist", "beside"),
    "mnist-beside-short": reproduced("mnist", "beside", SHORT),
    "mnist-detection": reproduced("mnist", "detection"),
    "mnist-detection-short": reproduced("mnist", "detection", SUMMARY),
    "mnist-held-out": reproduced("mnist-held-out", "detection"),
    "mnist-goal": reproduced("mnist-robust", "goal"),
    "mnist-goal-short": reproduced("mnist-robust", "goal", OURS),
    "mnist-robust": reproduced("mnist-robust", "detection"),
    "emnist-goal": reproduced("emnist-robust", "goal"),
    "emnist-robust": reproduced("emnist-robust", "detection"),
    "rivals": rivals,
    "bench-goals": bench.goals_table,
    "bench-predict-cpu": bench.predict_table("cpu"),
    "bench-predict-cuda": bench.predict_table("cuda"),
    "bench-kernel": bench.kernel_table,
    "bench-distill-cpu": bench.distill_table("cpu"),
    "bench-distill-cuda": bench.distill_table("cuda"),
    "bench-compressed": bench.compressed_table,
    "emnist-held-out": reproduced("emnist-held-out", "detection"),
    "emnist-beside": reproduced("emnist", "beside"),
    "emnist-detection": reproduced("emnist", "detection"),
}
