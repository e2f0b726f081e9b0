"""HTML by construction: every text is escaped unless it is `Raw`, which only `el` and constants of ours make."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

# Control and bidirectional characters would hide or reorder what a reader sees; lone surrogates cannot be written.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff\ufffe\uffff]"
)
_VOID = frozenset({"meta", "br", "hr", "input", "path", "rect", "line", "circle", "polyline", "use"})


class Raw(str):
    """Text that is HTML already."""

    __slots__ = ()


def visible(text: str) -> str:
    """The text with characters that cannot be seen written as `\\u202e`."""
    return _HIDDEN.sub(lambda m: f"\\u{ord(m[0]):04x}", text)


def escape(text: str) -> Raw:
    """Text as HTML, safe in elements and in quoted attributes."""
    return Raw(html.escape(visible(text), quote=True))


def join(*inner: object) -> Raw:
    """Pieces one after the other: strings escaped, None left out, iterables flattened."""
    return Raw("".join(_pieces(inner)))


def el(tag: str, *inner: object, **attributes: object) -> Raw:
    """An element.  Attribute names: a trailing underscore is dropped (`class_`), inner ones become dashes; a value of
    None or False leaves the attribute out, True writes it bare."""
    words = [tag]
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        name = name.removesuffix("_").replace("_", "-")
        words.append(name if value is True else f'{name}="{escape(_plain(value))}"')
    if tag in _VOID:
        return Raw(f"<{' '.join(words)}>" if tag in ("meta", "br", "hr", "input") else f"<{' '.join(words)}/>")
    return Raw(f"<{' '.join(words)}>{join(*inner)}</{tag}>")


def _pieces(inner: Iterable[object]) -> Iterable[str]:
    for piece in inner:
        if piece is None:
            continue
        if isinstance(piece, Raw):
            yield piece
        elif isinstance(piece, str):
            yield escape(piece)
        elif isinstance(piece, (int, float)):
            yield escape(_plain(piece))
        elif isinstance(piece, Iterable):
            yield from _pieces(piece)
        else:
            raise TypeError(f"{type(piece).__name__} cannot stand in a page")


def _plain(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


_CODE = re.compile(r"`([^`\n]+)`")


def prose(text: str) -> Raw:
    """One paragraph's text: what stands in backticks becomes code."""
    parts: list[object] = []
    at = 0
    for match in _CODE.finditer(text):
        parts += [text[at : match.start()], el("code", match[1])]
        at = match.end()
    return join(parts, text[at:])


def markdown(text: str) -> Raw:
    """The little Markdown of a rule's page: paragraphs, lists, headings, fenced code."""
    parts: list[Raw] = []
    for fence, block in _blocks(text):
        lines = block.splitlines()
        if fence:
            parts.append(el("pre", el("code", block)))
        elif lines[0].startswith("#"):
            parts.append(el("h4", lines[0].lstrip("# ")))
            if len(lines) > 1:
                parts.append(el("p", prose(" ".join(line.strip() for line in lines[1:]))))
        elif lines[0].lstrip().startswith(("- ", "* ")):
            items: list[str] = []
            for line in lines:
                if line.lstrip().startswith(("- ", "* ")) or not items:
                    items.append(line.lstrip()[2:])
                else:
                    items[-1] += " " + line.strip()
            parts.append(el("ul", [el("li", prose(item)) for item in items]))
        elif all(line.startswith("    ") for line in lines):
            parts.append(el("pre", el("code", "\n".join(line[4:] for line in lines))))
        else:
            parts.append(el("p", prose(" ".join(line.strip() for line in lines))))
    return join(parts)


def _blocks(text: str) -> Iterable[tuple[bool, str]]:
    """(is fenced code, text) of each block."""
    fenced: list[str] | None = None
    block: list[str] = []
    for line in [*text.splitlines(), ""]:
        if line.lstrip().startswith("```"):
            if fenced is None:
                if block:
                    yield False, "\n".join(block)
                block, fenced = [], []
            else:
                yield True, "\n".join(fenced)
                fenced = None
        elif fenced is not None:
            fenced.append(line)
        elif line.strip():
            block.append(line)
        elif block:
            yield False, "\n".join(block)
            block = []
    if fenced:
        yield True, "\n".join(fenced)


__all__ = ["Raw", "el", "escape", "join", "markdown", "prose", "visible"]
