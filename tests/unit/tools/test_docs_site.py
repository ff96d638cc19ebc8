"""tools/docs without Sphinx: which pages there are, how links are rewritten, what a built site may contain.

`make docs` builds the site itself, with warnings as errors.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.docs import __main__ as site_builder
from tools.docs.check import faults
from tools.docs.navigation import NAVIGATION
from tools.docs.stage import NavigationError, StagedLinkError, check_navigation, pages, stage


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_md", ".md").replace("_py", ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "repository"
    write(
        root,
        CHANGELOG_md="# Changelog\n\n[page](docs/one.md)\n",
        CONTRIBUTING_md="# Contributing\n",
        SECURITY_md="# Security\n",
        docs__index_md="# Index\n\n[one](one.md) [changes](../CHANGELOG.md)\n",
        docs__one_md="# One\n\n[file](../examples/app.py#L3) [folder](../examples/) [web](https://example.com/a)\n",
        docs__tasks__two_md="# Two\n\n[one](../one.md#part) [file](../../examples/app.py)\n\n"
        "```text\n[a](nowhere.md)\n```\n",
        examples__app_py="print('hello')\n",
    )
    order = {"All": ["one.md", "tasks/two.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "files/index.md"]}
    monkeypatch.setattr("tools.docs.stage.NAVIGATION", order)
    return root


def test_every_page_is_in_the_navigation() -> None:
    check_navigation()
    assert list(NAVIGATION)[:2] == ["Start", "Tasks"]
    assert "tasks/limit-an-api.md" in pages()


def test_page_outside_the_navigation_is_named(repository: Path) -> None:
    write(repository, docs__lost_md="# Lost\n")
    with pytest.raises(NavigationError, match=r"lost\.md is not in the navigation: add it to"):
        check_navigation(repository)
    (repository / "docs" / "lost.md").unlink()
    (repository / "docs" / "one.md").unlink()
    with pytest.raises(NavigationError, match=r"one\.md is in the navigation, but does not exist"):
        check_navigation(repository)


def test_links_lead_to_the_copies(repository: Path, tmp_path: Path) -> None:
    staged = tmp_path / "staged"
    stage(staged, repository)
    assert "[one](one.md) [changes](CHANGELOG.md)" in (staged / "index.md").read_text()
    one = (staged / "one.md").read_text()
    assert "[file](files/examples--app.py.md#L3) [folder](files/examples.md) [web](https://example.com/a)" in one
    two = (staged / "tasks" / "two.md").read_text()
    assert "[one](../one.md#part) [file](../files/examples--app.py.md)" in two
    assert "[a](nowhere.md)" in two, "fenced blocks are left alone"
    assert "[page](one.md)" in (staged / "CHANGELOG.md").read_text()
    assert "print('hello')" in (staged / "files" / "examples--app.py.md").read_text()
    assert "[`app.py`](examples--app.py.md)" in (staged / "files" / "examples.md").read_text()
    assert "tasks/two" in (staged / "index.md").read_text().partition("toctree")[2]


def test_link_that_leads_nowhere_is_an_error(repository: Path, tmp_path: Path) -> None:
    write(repository, docs__one_md="# One\n\n[file](../examples/gone.py)\n")
    with pytest.raises(StagedLinkError, match=r"docs/one\.md: \.\./examples/gone\.py leads nowhere"):
        stage(tmp_path / "staged", repository)


@pytest.mark.parametrize(
    "loaded",
    [
        '<script src="https://cdn.example.com/a.js"></script>',
        '<link rel="stylesheet" href="//fonts.example.com/a.css">',
        '<img src="http://example.com/a.png">',
        '<p style="background: url(https://example.com/a.png)"></p>',
    ],
)
def test_resource_of_another_host_is_a_fault(loaded: str, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(f'<a href="https://example.com/">a link is fine</a>{loaded}')
    assert [fault for fault in faults(tmp_path, ["index.html"]) if "from another host" in fault]


def test_resources_in_styles_and_scripts_are_faults(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("")
    (tmp_path / "a.css").write_text('@import "https://fonts.example.com/a.css"; p { src: url(//example.com/a.woff) }')
    (tmp_path / "a.js").write_text('fetch("https://example.com/count")')
    assert len(faults(tmp_path, ["index.html"])) == 3


def test_broken_links_and_missing_pages_are_faults(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(
        '<a href="a.html#there">1</a><a href="a.html#gone">2</a><a href="b.html">3</a>'
    )
    (tmp_path / "a.html").write_text('<h1 id="there"></h1><a href="#there">up</a>')
    assert faults(tmp_path, ["index.html", "c.html"]) == [
        "c.html was not built",
        "index.html links to a.html#gone, which does not exist",
        "index.html links to b.html, which does not exist",
    ]


def test_versions_are_published_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site, folder = tmp_path / "site", tmp_path / "published"
    (site / "_static").mkdir(parents=True)
    (site / "index.html").write_text("a page")
    for name in ("0.9.0", "main", "0.10.0", "0.10.0rc1"):
        site_builder.publish(site, folder, name)
    expected = 'window.CRESTGATE_VERSIONS = ["0.10.0", "0.10.0rc1", "0.9.0", "main"];\n'
    assert {path.read_text() for path in folder.glob("*/_static/versions.js")} == {expected}
    assert 'url=0.10.0/index.html"' in (folder / "index.html").read_text()
    with pytest.raises(SystemExit, match=r"'\.\./x' is not the name of a folder"):
        site_builder.publish(site, folder, "../x")
