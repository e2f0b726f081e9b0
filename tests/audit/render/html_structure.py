"""What a page must keep whatever the program is called: well-formed, self-contained, navigable.  Uses the parser of the
standard library, which knows nothing of the renderer."""

from __future__ import annotations

from collections import Counter
from html.parser import HTMLParser

VOID = {"meta", "br", "hr", "input", "link", "img"}
SELF_CLOSED = {"path", "rect", "line", "circle", "polyline"}
LOADS = {"src", "srcset", "action", "formaction", "poster", "data", "background", "ping"}


class Page(HTMLParser):
    """`problems`: what is wrong; `text`: all text that a reader sees; `tags`: how often each element stands."""

    def __init__(self, document: str) -> None:
        super().__init__(convert_charrefs=True)
        self.problems: list[str] = []
        self.text = ""
        self.scripts: list[str] = []
        self.tags: Counter[str] = Counter()
        self.ids: Counter[str] = Counter()
        self.links: list[str] = []
        self.wanted: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self._open: list[str] = []
        if not document.startswith("<!doctype html>\n"):
            self.problems.append("no doctype")
        self.feed(document)
        self.close()
        self.text = " ".join(self.text.split())
        self.problems += [f"<{tag}> is never closed" for tag in self._open]
        self.problems += [f"id {name} stands {n} times" for name, n in self.ids.items() if n > 1]
        targets = [*(link[1:] for link in self.links if link.startswith("#")), *self.wanted]
        self.problems += [f"{name} leads nowhere" for name in targets if name not in self.ids]
        if self.tags["main"] != 1 or self.tags["h1"] != 1 or not self.tags["nav"]:
            self.problems.append("landmarks: one main, one h1 and a nav")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        given = {name: value or "" for name, value in attrs}
        self.attributes += [(tag, name, value) for name, value in given.items()]
        for name, value in given.items():
            if name.startswith("on"):
                self.problems.append(f"<{tag}> has a handler {name}")
            if name in LOADS or (name == "href" and tag != "a"):
                self.problems.append(f"<{tag}> loads {value}")
        if tag in ("img", "link", "iframe", "object", "embed", "base", "form"):
            self.problems.append(f"<{tag}> has no place here")
        if tag == "svg" and given.get("aria-hidden") != "true" and not (given.get("role") and given.get("aria-label")):
            self.problems.append("a picture without a name")
        if "id" in given:
            self.ids[given["id"]] += 1
        if "aria-labelledby" in given:
            self.wanted.append(given["aria-labelledby"])
        if tag == "a":
            self.links.append(given.get("href", ""))
            if given.get("href", "").partition(":")[0].lower() not in ("file", "") and not given["href"].startswith(
                "#"
            ):
                self.problems.append(f"a link to {given['href']}")
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()
            if tag not in SELF_CLOSED:
                self.problems.append(f"<{tag}/> closes itself")

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self.problems.append(f"</{tag}> closes something else")

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "script":
            self.scripts.append(data)
        elif not self._open or self._open[-1] != "style":
            self.text += data + " "
