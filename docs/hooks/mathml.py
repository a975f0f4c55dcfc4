"""Formulas become MathML while the site is built, so that no page loads a script or a font from elsewhere."""

import html
import re
from typing import Any

from latex2mathml.converter import convert

# What pymdownx.arithmatex leaves of $...$ and $$...$$.
_INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
_BLOCK = re.compile(r'<div class="arithmatex">\\\[(.*?)\\\]</div>', re.DOTALL)


def on_page_content(content: str, **_: Any) -> str:
    """Replace the formulas of one page."""
    content = _BLOCK.sub(lambda match: f'<div class="formula">{_mathml(match[1], "block")}</div>', content)
    return _INLINE.sub(lambda match: _mathml(match[1], "inline"), content)


def _mathml(latex: str, display: str) -> str:
    return convert(html.unescape(latex).strip(), display=display)
