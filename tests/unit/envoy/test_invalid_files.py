"""Exact error messages for invalid descriptor files.

Every file in `broken/` has one error; `broken/expected.txt` has its message: the file, the line, the field
where there is one, what is wrong, and what to write.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from crestgate.envoy.files import read_descriptor_files

BROKEN = Path(__file__).parent / "broken"
EXPECTED = dict(
    re.findall(
        r"^== (\S+)\n(.*?)\n(?=\n== |\Z)", (BROKEN / "expected.txt").read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
)
FILES = sorted(path.name for path in BROKEN.glob("*.yaml"))
LIMIT = "rate_limit: {unit: minute, requests_per_unit: 5}"


@pytest.mark.parametrize("parser", ["C", "Python"])
@pytest.mark.parametrize("name", FILES)
def test_message_about_a_descriptor(name: str, parser: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(BROKEN)
    if parser == "Python":  # PyYAML's fallback when built without its C library
        monkeypatch.delattr(yaml, "CSafeLoader")
    (problem,) = read_descriptor_files(name).problems
    assert str(problem) == EXPECTED[name]
    assert problem.line is not None


def test_every_message_is_of_a_file() -> None:
    assert sorted(EXPECTED) == FILES


def messages(path: Path) -> list[str]:
    files = read_descriptor_files(str(path))
    assert files.domains.counts == {}
    return [str(problem).removeprefix(f"{path}/") for problem in files.problems]


def test_all_problems_of_all_files_are_reported_in_order(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text(
        f"domain: shop\ndescriptors:\n  - key: user\n    {LIMIT}\n    colour: red\n  - a\n"
    )
    (tmp_path / "a.yml").write_text("descriptors:\n  - key: user\n    rate_limit: {unit: minutes}\n  - value: x\n")
    assert messages(tmp_path) == [
        "a.yml:1: domain: is missing: write the name that requests have",
        "a.yml:3: descriptors[0].rate_limit.requests_per_unit: is missing: write a whole number from 0 to 4294967295",
        "a.yml:3: descriptors[0].rate_limit.unit: must be one of second, minute, hour, day, week, month, year, "
        "not 'minutes'; did you mean 'minute'?",
        "a.yml:4: descriptors[1].key: is missing: write the key that requests have",
        "b.yaml:5: descriptors[0].colour: unknown field: there are key, value, rate_limit, descriptors, shadow_mode, "
        "quota_mode, detailed_metric, value_to_metric, share_threshold, metadata",
        "b.yaml:6: descriptors[1]: must be a mapping with key, value, rate_limit, descriptors, shadow_mode, "
        "quota_mode, detailed_metric, value_to_metric, share_threshold, metadata, not 'a'",
    ]


def test_descriptors_below_a_problem_are_validated_too(tmp_path: Path) -> None:
    path = tmp_path / "shop.yaml"
    path.write_text(
        "domain: shop\n"
        "descriptors:\n"
        "  - key: user\n"
        "  - key: user\n"
        "    descriptors:\n"
        "      - key: path\n"
        "        rate_limit: {unit: day}\n"
        "      - {}\n"
    )
    lines = [problem.line for problem in read_descriptor_files(str(path)).problems]
    assert lines == [4, 7, 8]


def test_domain_in_two_files_is_a_problem(tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yaml", "c.yaml"):
        (tmp_path / name).write_text(f"# {name}\ndomain: {'shop' if name != 'b.yaml' else 'mail'}\n")
    assert messages(tmp_path) == [
        f"c.yaml:2: domain: 'shop' is the domain of {tmp_path}/a.yaml too: put all of its descriptors into one file"
    ]


def test_empty_folder_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / ".hidden.yaml").write_text("domain: shop\n")
    (tmp_path / "notes.txt").write_text("domain: shop\n")
    (tmp_path / "below.yaml").mkdir()
    message = "there is no *.yaml or *.yml file in this folder: add one for each domain, or correct the path"
    assert messages(tmp_path) == [f"{tmp_path}: {message}"]


def test_missing_path_is_a_problem(tmp_path: Path) -> None:
    missing = tmp_path / "none.yaml"
    assert messages(missing) == [f"{missing}: there is no such file or folder: create it, or correct the path"]
    (tmp_path / "gone.yaml").symlink_to("nowhere")
    assert messages(tmp_path) == ["gone.yaml: there is no such file: correct the path, or create the file"]


def test_single_file_may_have_any_name(tmp_path: Path) -> None:
    path = tmp_path / "limits.conf"
    path.write_text(f"domain: shop\ndescriptors:\n  - key: user\n    {LIMIT}\n")
    assert read_descriptor_files(str(path)).domains.counts == {"shop": 1}
