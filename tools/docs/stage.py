"""Copies the pages to a folder that Sphinx can build, with links and navigation that suit a site.

The pages of docs/ are written for a code host: relative links lead to pages, and to files anywhere in the repository.
In the copy, a link to a file outside docs/ leads to a page that shows this file, because a site cannot assume where
its reader finds the repository. Fenced blocks are left alone.
"""

from __future__ import annotations

import os
import posixpath
import re
import shutil
from pathlib import Path

from tools.docs.navigation import NAVIGATION, REPOSITORY_PAGES

__all__ = ["NavigationError", "StagedLinkError", "check_navigation", "pages", "stage"]

ROOT = Path(__file__).resolve().parent.parent.parent
LANGUAGES = {
    ".py": "python",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".toml": "toml",
    ".proto": "protobuf",
    ".conf": "nginx",
    ".xml": "xml",
}
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
OUTSIDE_SIDEBAR = "---\norphan: true\n---\n\n"
"""For pages of files: the page `Files of the repository` lists them. In the sidebar they would be most of it."""

MAX_SHOWN = 200_000
"""Bytes of a file that has a page."""


class NavigationError(Exception):
    """A page is not in the navigation, or is there twice, or does not exist."""


class StagedLinkError(Exception):
    """A link leads nowhere."""


def pages(root: Path = ROOT) -> list[str]:
    """All pages, as the navigation names them."""
    docs = root / "docs"
    found = [path.relative_to(docs).as_posix() for path in docs.rglob("*.md")]
    return sorted([*found, *REPOSITORY_PAGES])


def check_navigation(root: Path = ROOT) -> None:
    """Raise NavigationError unless each page is in the navigation once."""
    named = [page for group in NAVIGATION.values() for page in group if page != "files/index.md"]
    below = [page for page in pages(root) if page.startswith("decisions/") and page != "decisions/README.md"]
    wanted = [page for page in pages(root) if page != "index.md" and page not in below]
    faults = [
        f"{page} is not in the navigation: add it to tools/docs/navigation.py" for page in wanted if page not in named
    ]
    faults += [f"{page} is in the navigation, but does not exist" for page in named if page not in wanted]
    faults += [f"{page} is in the navigation twice" for page in sorted({one for one in named if named.count(one) > 1})]
    if faults:
        raise NavigationError("\n".join(faults))


class _Stage:
    """One copy: where it is, and which files of the repository its links need."""

    def __init__(self, root: Path, target: Path) -> None:
        self._root = root
        self._target = target
        self._files: dict[str, str] = {}
        """A path in the repository, and the page that shows it."""

    def run(self) -> None:
        shutil.rmtree(self._target, ignore_errors=True)
        docs = self._root / "docs"
        for path in sorted(docs.rglob("*")):
            if path.is_file() and path.suffix != ".md":
                copy = self._target / path.relative_to(docs)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)
        for page in pages(self._root):
            source = (self._root if page in REPOSITORY_PAGES else docs) / page
            text = self._with_links(source.read_text(), source, page)
            if page == "index.md":
                text += "\n" + _toctrees()
            if page == "decisions/README.md":
                text += "\n" + _toctree(
                    sorted(path.name for path in source.parent.glob("*.md") if path != source), depth=1
                )
            self._write(page, text)
        self._write_files()

    def _with_links(self, text: str, source: Path, page: str) -> str:
        """The text of a page, with links that are right where the copy is."""

        def rewritten(match: re.Match[str]) -> str:
            return self._target_of(match[1], source, page)

        kept = FENCE.findall(text)
        changed = LINK.sub(rewritten, FENCE.sub("\0", text))
        for fence in kept:
            changed = changed.replace("\0", fence, 1)
        return changed

    def _target_of(self, link: str, source: Path, page: str) -> str:
        name, mark, heading = link.partition("#")
        if not name or re.match(r"[a-z]+:", name):
            return link
        path = Path(os.path.normpath(source.parent / name))
        if not path.exists():
            raise StagedLinkError(f"{source.relative_to(self._root)}: {link} leads nowhere")
        known = path.relative_to(self._root).as_posix()
        if known in REPOSITORY_PAGES:
            target = known
        elif known in ("README.md", "docs"):
            target = "index.md"
        elif known.startswith("docs/"):
            target = known.removeprefix("docs/")
            if path.is_dir():
                target += "/README.md"
        else:
            target = self._page_of(path, known)
        return posixpath.relpath(target, posixpath.dirname(page) or ".") + mark + heading

    def _page_of(self, path: Path, known: str) -> str:
        """The page that shows a file or folder of the repository."""
        if known not in self._files:
            page = f"files/{known.strip('/.').replace('/', '--')}.md"
            self._files[known] = page
            if path.is_dir():
                for child in _children(path):
                    self._page_of(child, child.relative_to(self._root).as_posix())
        return self._files[known]

    def _write_files(self) -> None:
        """The pages of files and folders; README files of folders are pages with links of their own."""
        done: set[str] = set()
        while waiting := [known for known in self._files if known not in done]:
            for known in waiting:
                done.add(known)
                path, page = self._root / known, self._files[known]
                text = self._folder(path, page) if path.is_dir() else self._file(path, known, page)
                self._write(page, OUTSIDE_SIDEBAR + text)
        listed = "".join(f"- [`{known}`]({posixpath.basename(page)})\n" for known, page in sorted(self._files.items()))
        self._write(
            "files/index.md", f"# Files of the repository\n\nWhat these pages link to, as of this version.\n\n{listed}"
        )

    def _folder(self, path: Path, page: str) -> str:
        known = path.relative_to(self._root).as_posix()
        lines = [f"# `{known}/`\n\n"]
        for child in _children(path):
            name = child.relative_to(self._root).as_posix()
            shown = child.name + ("/" if child.is_dir() else "")
            lines.append(f"- [`{shown}`]({posixpath.basename(self._page_of(child, name))})\n")
        return "".join(lines)

    def _file(self, path: Path, known: str, page: str) -> str:
        text = path.read_text()
        if path.suffix == ".md":
            return self._with_links(text, path, page)
        language = LANGUAGES.get(path.suffix, "text")
        fence = "`" * 3
        while fence in text:
            fence += "`"
        return f"# `{known}`\n\n{fence}{language}\n{text.rstrip()}\n{fence}\n"

    def _write(self, page: str, text: str) -> None:
        path = self._target / page
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _children(folder: Path) -> list[Path]:
    return [
        path
        for path in sorted(folder.iterdir())
        if not path.name.startswith("__") and (path.is_dir() or _is_text(path))
    ]


def _is_text(path: Path) -> bool:
    try:
        path.read_text()
    except UnicodeDecodeError:
        return False
    return path.stat().st_size <= MAX_SHOWN


def _toctrees() -> str:
    return "\n".join(_toctree(group, caption=caption, hidden=True) for caption, group in NAVIGATION.items())


def _toctree(names: list[str], caption: str = "", depth: int = 2, hidden: bool = False) -> str:
    options = [f":caption: {caption}"] if caption else []
    options += [f":maxdepth: {depth}", *([":hidden:"] if hidden else []), ""]
    return "\n".join(["```{toctree}", *options, *(name.removesuffix(".md") for name in names), "```", ""])


def stage(target: Path, root: Path = ROOT) -> None:
    """Make the copy anew."""
    check_navigation(root)
    _Stage(root, target).run()
