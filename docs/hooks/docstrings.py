"""Turns the roles of our docstrings, such as ``:func:`` and ``.. math::``, into Markdown."""

import re
import textwrap
from typing import Any

from griffe import Extension, Object

_MATH_ROLE = re.compile(r":math:`(.*?)`", re.DOTALL)
_OTHER_ROLE = re.compile(r":\w+:`~?(?:[\w.]*\.)?(\w+)`")
_MATH_BLOCK = re.compile(r"^( *)\.\. math::(.*\n?(?:(?:\1 +\S.*)?\n?)*)", re.MULTILINE)


class RolesToMarkdown(Extension):
    """Rewrites every docstring before it is parsed."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite the docstring of one function, class, attribute or module."""
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)


def to_markdown(text: str) -> str:
    """A docstring with formulas between dollar signs and names between backticks."""
    text = _MATH_BLOCK.sub(_display, text)
    text = _MATH_ROLE.sub(lambda match: f"${' '.join(match[1].split())}$", text)
    return _OTHER_ROLE.sub(r"`\1`", text)


def _display(match: re.Match[str]) -> str:
    indent, formula = match[1], " ".join(textwrap.dedent(match[2]).split())
    return f"\n{indent}$$\n{indent}{formula}\n{indent}$$\n\n"
