"""Looks over a built site: no page is missing, none loads anything from another host, no link inside it is broken."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

__all__ = ["faults"]

LOADED = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "embed": "src",
    "object": "data",
    "link": "href",
}
"""Elements whose resource a browser fetches by itself, and the attribute that names it."""

EXTERNAL = re.compile(r"(?:[a-z]+:)?//", re.IGNORECASE)
IN_STYLES = re.compile(r"(?:url\(\s*|@import\s+)[\"']?((?:https?:)?//[^\"')\s]+)", re.IGNORECASE)
IN_SCRIPTS = re.compile(r"(?:fetch\(|import\(|\.src\s*=|\.open\(\s*[\"'][A-Z]+[\"'],)\s*[\"'`]((?:https?:)?//[^\"'`]+)")


class _Page(HTMLParser):
    """What a page loads, where it links to, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.anchors.add(given["id"])
        if tag in LOADED and given.get(LOADED[tag]):
            self.loaded.append(given[LOADED[tag]])
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        self.loaded += IN_STYLES.findall(given.get("style", ""))


def faults(site: Path, expected: list[str]) -> list[str]:
    """What is wrong with a site; `expected` are the pages that it must have."""
    built = {path.relative_to(site).as_posix(): _Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    found = [f"{page} was not built" for page in expected if page not in built]
    for name, page in built.items():
        found += [f"{name} loads {url} from another host" for url in page.loaded if EXTERNAL.match(url)]
        found += [
            f"{name} links to {link}, which does not exist"
            for link in page.links
            if _is_broken(name, link, built, site)
        ]
    for path in sorted([*site.rglob("*.css"), *site.rglob("*.js"), *site.rglob("*.svg")]):
        text = path.read_text()
        pattern = IN_SCRIPTS if path.suffix == ".js" else IN_STYLES
        found += [f"{path.relative_to(site)} loads {url} from another host" for url in pattern.findall(text)]
    return found


def _is_broken(name: str, link: str, built: dict[str, _Page], site: Path) -> bool:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return False
    target = (site / name).parent / unquote(parts.path) if parts.path else site / name
    target = target.resolve()
    if not target.is_relative_to(site.resolve()) or not target.is_file():
        return True
    page = built.get(target.relative_to(site.resolve()).as_posix())
    return bool(parts.fragment) and page is not None and unquote(parts.fragment) not in page.anchors
