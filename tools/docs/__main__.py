"""Builds the site, and adds it to a folder of several versions.

    python -m tools.docs build/site                      the site of this version
    python -m tools.docs build/site --publish FOLDER     the same, and a copy in FOLDER/VERSION

Warnings are errors: a broken link, a page outside the navigation, a picture that is not there. Needs the packages of
the dependency group `docs`, which `make docs` installs.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tools.docs.check import faults
from tools.docs.stage import ROOT, NavigationError, StagedLinkError, pages, stage
from tools.version import version

HERE = Path(__file__).resolve().parent


def build(site: Path) -> None:
    """Build the site into a folder that is made anew."""
    staged = site.with_name(site.name + "-source")
    try:
        stage(staged)
    except (NavigationError, StagedLinkError) as error:
        sys.exit(str(error))
    shutil.rmtree(site, ignore_errors=True)
    doctrees = site.with_name(site.name + "-doctrees")
    shutil.rmtree(doctrees, ignore_errors=True)
    options = ["-W", "--keep-going", "-q", "-E", "-b", "html", "-c", str(HERE), "-d", str(doctrees)]
    done = subprocess.run([sys.executable, "-m", "sphinx", *options, str(staged), str(site)], cwd=ROOT, check=False)
    if done.returncode:
        sys.exit("The site was not built: see the warnings above. Each is an error.")
    expected = [page.removesuffix(".md") + ".html" for page in pages()]
    if found := faults(site, expected):
        sys.exit("\n".join(found))
    print(f"{len(list(site.rglob('*.html')))} pages: open {site / 'index.html'}")


def publish(site: Path, folder: Path, name: str) -> None:
    """Copy a site to a folder with one of each version; all of them get a menu, and the root leads to the newest."""
    if not re.fullmatch(r"[\w.-]+", name):
        sys.exit(f"version {name!r} is not the name of a folder: use letters, digits, dots and hyphens")
    target = folder / name
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(site, target)
    versions = sorted((path.parent.name for path in folder.glob("*/index.html")), key=_by_number, reverse=True)
    for each in versions:
        script = f"window.CRESTGATE_VERSIONS = {json.dumps(versions)};\n"
        (folder / each / "_static" / "versions.js").write_text(script)
    newest = versions[0]
    (folder / "index.html").write_text(
        f'<!doctype html><meta charset="utf-8"><title>Crestgate</title>'
        f'<meta http-equiv="refresh" content="0; url={newest}/index.html"><a href="{newest}/index.html">Crestgate</a>\n'
    )
    print(f"{target}: one of {', '.join(versions)}")


def _by_number(name: str) -> tuple[tuple[int, ...], bool, str]:
    """Versions by their numbers, releases after their candidates; names without numbers, such as `main`, before all."""
    leading = re.match(r"v?(\d+(?:\.\d+)*)", name)
    numbers = tuple(int(part) for part in leading[1].split(".")) if leading else ()
    return numbers, bool(leading and leading[0] == name), name


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the pages of docs/ as a site.")
    parser.add_argument("site", type=Path, help="the folder to write: it is deleted first")
    parser.add_argument(
        "--publish", type=Path, metavar="FOLDER", help="also copy it to FOLDER/VERSION, and name it there"
    )
    parser.add_argument("--as", dest="name", default=version(), metavar="VERSION", help="the name of the version")
    arguments = parser.parse_args()
    site = arguments.site.resolve()
    build(site)
    if arguments.publish:
        publish(site, arguments.publish.resolve(), arguments.name)


if __name__ == "__main__":
    main()
