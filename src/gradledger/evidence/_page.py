"""The tables of a report, read back out of its HTML."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser


@dataclass
class Table:
    """One section of the page. heads: of its columns; rows: of texts."""

    heads: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)


def tables(page: str) -> dict[str, Table]:
    """Title of the section -> its table; sections without one are left out. What stands under the title of the page is
    the table ``Summary`` with one cell."""
    reader = _Reader()
    reader.feed(page)
    return {title: one for title, one in reader.found.items() if one.heads}


def cells(page: str) -> dict[str, str]:
    """``Trials, row 2: status`` -> its text, for every cell of every table."""
    return {
        f"{title}, row {number}: {head}": text
        for title, one in tables(page).items()
        for number, row in enumerate(one.rows, start=1)
        for head, text in zip(one.heads, row, strict=False)
    }


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: dict[str, Table] = {}
        self._title, self._text, self._inside = "", "", ""
        self._head = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "header":
            self._head = True
        elif tag in ("h2", "th", "td") or (tag == "p" and self._head):
            self._inside, self._text = tag, ""
        elif tag == "tr" and self._title:
            self.found[self._title].rows.append([])

    def handle_data(self, data: str) -> None:
        if self._inside:
            self._text += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "header":
            self._head = False
        if tag != self._inside:
            return
        self._inside = ""
        if tag == "p":
            self.found["Summary"] = Table(["counts"], [[self._text]])
        elif tag == "h2":
            self._title = self._text
            self.found[self._title] = Table()
        elif self._title:
            one = self.found[self._title]
            if tag == "th":
                one.heads.append(self._text)
                one.rows.clear()  # the row that was begun is that of the heads
            elif one.rows:
                one.rows[-1].append(self._text)
