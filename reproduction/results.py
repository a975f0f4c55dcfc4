"""Result files. Older files hold other words; they are given the words of today on reading."""

import json
from pathlib import Path
from typing import Any

# File names of today, and what they were called.
_FORMER_FILES = {"comparison-": "rivals-", "study-clipped-kl": "study-steady-kl"}
# Whole keys and values, and parts of them.
_FORMER_WORDS = {"strangeness": "feature_distance", "sound": "standardised", "bounded": "sigmoid"}
_FORMER_PARTS = {
    "% left out": "% pruned",
    "strangers": "ood",
    "broadened": "augmented",
    "(sound)": "(standardised)",
    "steady_kl": "clipped_kl",
    "steady kl": "clipped kl",
    "slowly_bounded": "softsign",
    "slow bounds": "softsign link",
    "side by side": "stacked",
    "recorded": "captured",
}


def read(results: Path, pattern: str, command: str) -> list[dict[str, Any]]:
    """The result files of a pattern, in today's words.

    Args:
        results: Folder of the files.
        pattern: Pattern of their names.
        command: The command that makes them, for the error if there are none.
    """
    paths = sorted(results.glob(pattern)) or sorted(results.glob(_former_file(pattern)))
    if not paths:
        raise ValueError(f"there is no {pattern} in {results}; make it with: {command}.")
    return [read_file(path) for path in paths]


def read_one(results: Path, name: str, command: str) -> dict[str, Any]:
    """The result file with this name, in today's words."""
    (record,) = read(results, name, command)
    return record


def read_file(path: Path) -> dict[str, Any]:
    """One result file in today's words."""
    record: dict[str, Any] = in_todays_words(json.loads(path.read_text()))
    return record


def in_todays_words(value: Any) -> Any:
    """A record with the keys, names of rows and names of parts that the code uses today."""
    if isinstance(value, str):
        return _word(value)
    if isinstance(value, list):
        return [in_todays_words(each) for each in value]
    if not isinstance(value, dict):
        return value
    if "strangers" in value and "ood" in value:  # a row of the comparison, which names its scores
        value = dict(value)
        value |= {"error_score": value.pop("errors"), "ood_score": value.pop("strangers")}
    return {_word(key): in_todays_words(each) for key, each in value.items()}


def _word(text: str) -> str:
    if text in _FORMER_WORDS:
        return _FORMER_WORDS[text]
    for former, today in _FORMER_PARTS.items():
        text = text.replace(former, today)
    return text


def _former_file(pattern: str) -> str:
    for today, former in _FORMER_FILES.items():
        pattern = pattern.replace(today, former)
    return pattern
