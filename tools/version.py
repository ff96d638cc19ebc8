"""The version of a release, and what it says: `__version__` in src/crestgate/__init__.py is the only place of it.

python -m tools.version               prints it
python -m tools.version --tag v1.2.3  fails unless that is its tag, and the changelog has it with a date
python -m tools.version --notes       prints its part of CHANGELOG.md
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def version() -> str:
    """`__version__`, read without importing the package."""
    for node in ast.parse((ROOT / "src" / "crestgate" / "__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__version__"]:
            return str(ast.literal_eval(node.value))
    raise SystemExit("src/crestgate/__init__.py has no __version__")


def section(wanted: str, changelog: str) -> tuple[str, str]:
    """The date and the text of a version in the changelog."""
    found = re.search(
        rf"^## \[{re.escape(wanted)}\] - (?P<date>.+)\n(?P<text>(?:(?!## \[).*\n?)*)", changelog, re.MULTILINE
    )
    if found is None:
        raise SystemExit(f"CHANGELOG.md has no section `## [{wanted}] - DATE`")
    return found["date"].strip(), found["text"].strip()


def check_tag(tag: str) -> None:
    current = version()
    if tag != f"v{current}":
        raise SystemExit(f"the tag is {tag!r}, and __version__ is {current!r}: the tag must be 'v{current}'")
    date, _ = section(current, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", date):
        raise SystemExit(f"CHANGELOG.md dates {current} {date!r}: write the day of the release, as 2026-01-31")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Prints the version, or checks it before a release.")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--tag", help="fail unless this is the tag of the version")
    what.add_argument("--notes", action="store_true", help="print its part of the changelog")
    options = parser.parse_args(arguments)
    if options.tag is not None:
        check_tag(options.tag)
    elif options.notes:
        print(section(version(), (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))[1])
        return 0
    print(version())
    return 0


if __name__ == "__main__":
    sys.exit(main())
