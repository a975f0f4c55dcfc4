"""The numbers of the paper's tables 1 and 2, to stand beside ours.

Each cell is AUROC or AUPR with the measure that the paper picked for it: predictive entropy E, least confidence P,
negative log-precision C or differential entropy D.
"""

from typing import Any

Cell = tuple[float, str]


def _row(
    misc: tuple[Cell, Cell], omniglot: tuple[Cell, Cell], semeion: tuple[Cell, Cell] | None, accuracy: float
) -> dict[str, Any]:
    sets = {"omniglot": omniglot} | ({} if semeion is None else {"semeion": semeion})
    return {"misclassification": misc, "ood": sets, "accuracy": accuracy}


MNIST: dict[str, dict[str, Any]] = {
    "MCDP-KL": _row(((97.3, "E"), (43.0, "E")), ((99.4, "D"), (99.7, "D")), ((86.8, "E"), (53.8, "P")), 97.9),
    "MCDP-EMD": _row(((97.3, "E"), (43.0, "E")), ((99.6, "D"), (99.9, "D")), ((86.8, "E"), (53.8, "P")), 97.9),
    "MCDP-MMD": _row(((97.3, "E"), (43.0, "E")), ((99.7, "D"), (99.9, "D")), ((90.1, "D"), (71.2, "D")), 97.9),
    "OPU-MCDP-KL": _row(((94.2, "E"), (37.7, "E")), ((100.0, "C"), (77.0, "C")), ((91.4, "C"), (67.3, "C")), 96.2),
    "OPU-MCDP-EMD": _row(((95.3, "P"), (43.7, "P")), ((100.0, "C"), (100.0, "C")), ((93.3, "C"), (82.5, "C")), 96.1),
    "OPU-MCDP-MMD": _row(((97.2, "P"), (40.9, "P")), ((100.0, "C"), (100.0, "C")), ((99.8, "C"), (98.6, "C")), 97.9),
    "SGLD-KL": _row(((97.9, "P"), (46.2, "E")), ((99.2, "E"), (99.6, "E")), ((89.3, "E"), (46.8, "E")), 98.4),
    "SGLD-EMD": _row(((97.9, "E"), (46.2, "E")), ((99.4, "D"), (99.7, "D")), ((89.9, "D"), (47.1, "D")), 98.4),
    "SGLD-MMD": _row(((97.9, "E"), (46.2, "E")), ((99.2, "E"), (99.6, "E")), ((89.3, "E"), (46.8, "E")), 98.4),
    "OPU-SGLD-KL": _row(((94.2, "E"), (46.7, "E")), ((100.0, "C"), (100.0, "C")), ((99.5, "C"), (98.4, "C")), 98.2),
    "OPU-SGLD-EMD": _row(((93.7, "P"), (44.4, "E")), ((100.0, "C"), (100.0, "C")), ((98.9, "C"), (96.2, "C")), 98.0),
    "OPU-SGLD-MMD": _row(((97.2, "P"), (44.6, "E")), ((100.0, "C"), (100.0, "C")), ((99.1, "C"), (98.0, "C")), 98.1),
    "BDK-SGLD": _row(((85.9, "E"), (46.6, "E")), ((46.1, "E"), (41.7, "E")), ((35.3, "P"), (46.5, "P")), 92.1),
    "BDK-DIR-SGLD": _row(((89.9, "E"), (40.0, "E")), ((95.4, "E"), (96.4, "E")), ((74.7, "E"), (38.3, "E")), 94.1),
    "DPN": _row(((99.0, "E"), (43.6, "E")), ((100.0, "E"), (100.0, "E")), ((99.7, "E"), (98.6, "E")), 99.4),
}

EMNIST: dict[str, dict[str, Any]] = {
    "MCDP-KL": _row(((89.7, "P"), (46.8, "P")), ((99.7, "E"), (99.7, "E")), None, 88.8),
    "MCDP-MMD": _row(((89.7, "P"), (46.8, "P")), ((99.9, "D"), (99.9, "D")), None, 88.8),
    "OPU-MCDP-KL": _row(((84.8, "P"), (40.6, "P")), ((96.2, "E; 67.5 C"), (96.5, "E; 63.7 C")), None, 87.9),
    "OPU-MCDP-MMD": _row(((89.8, "P"), (49.6, "P")), ((100.0, "C"), (100.0, "C")), None, 88.4),
}

TABLES = {"mnist": MNIST, "emnist": EMNIST}
# Seconds for MNIST's test set on the paper's machine, by what is timed.
TEST_SECONDS = {"mc_dropout": 210.6, "sgld": 233.5, "opu": 0.443, "bdk": 0.441}
