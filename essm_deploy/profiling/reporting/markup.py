"""Elements of HTML and SVG as text. Whatever goes in is escaped, so that no document can add an element of its own."""

from __future__ import annotations

from html import escape

_EMPTY = ("meta", "br", "circle", "line", "rect", "path")


class Markup(str):
    """Text that is markup already. Every other string is escaped on its way into an element."""


def element(name: str, /, *children: str, **attributes: object) -> Markup:
    """One element. `class_` is the attribute class, `aria_label` is aria-label; those that are None are left out.

    Floats are written to a tenth of a unit, which is as fine as anything here is drawn.
    """
    pairs = "".join(f' {_name(key)}="{escape(_shown(value))}"' for key, value in attributes.items() if value is not None)
    if name in _EMPTY and not children:
        return Markup(f"<{name}{pairs}/>")
    return Markup(f"<{name}{pairs}>{join(*children)}</{name}>")


def join(*parts: str) -> Markup:
    """Parts one after the other; those that are not markup are escaped."""
    return Markup("".join(part if isinstance(part, Markup) else escape(part) for part in parts))


def _name(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def _shown(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
