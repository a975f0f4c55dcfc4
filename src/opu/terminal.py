"""All that is printed goes this way: text of users and files is printed as text, whatever is in it."""

from unicodedata import category

from rich.console import Console
from rich.text import Text


def say(console: Console, sentence: str, *, style: str | None = None, soft_wrap: bool | None = None) -> None:
    """Print a line, in which nothing is read as markup, as the code of an emoji, or as a command to the terminal.

    Args:
        console: Where to print.
        sentence: The line.
        style: How it looks, such as ``bold``.
        soft_wrap: Whether the terminal wraps it, so that a path can be copied whole; by default as the console does.
    """
    console.print(Text(printable(sentence, console.encoding)), style=style, highlight=False, soft_wrap=soft_wrap)


def printable(text: str, encoding: str = "utf-8") -> str:
    r"""A text with escapes such as ``\x1b`` and ``\n`` in place of all that cannot be seen, or cannot be encoded.

    These are control characters, line breaks, marks that reverse the direction of writing, and bytes of a file name that
    are no text. Names of columns, classes and files may hold them, and could otherwise change what the terminal shows.

    Args:
        text: Any text.
        encoding: What the terminal takes.
    """
    seen = (sign if sign.isprintable() or category(sign) == "Zs" else _escaped(sign) for sign in text)
    return "".join(seen).encode(encoding, "backslashreplace").decode(encoding)


def _escaped(sign: str) -> str:
    return sign.encode("unicode_escape").decode()
