"""Reads HTML in tests: tags, attributes, text and numbers."""

import re
from html.parser import HTMLParser

VOID = {"meta", "img", "br", "hr", "link", "input", "wbr"}


class HtmlPage(HTMLParser):
    """Collects tags, attributes and text, and checks that every tag is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.text += data

    def values(self, tag: str, attribute: str) -> list[str]:
        return [attrs.get(attribute) or "" for name, attrs in self.tags if name == tag]


def find_numbers(text: str, pattern: str) -> list[float]:
    """Return the numbers that a pattern with one group finds."""
    return [float(found.replace("−", "-")) for found in re.findall(pattern, text)]
