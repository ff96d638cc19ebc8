"""What is said on machines where something is missing, before anything is created."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tools import compile as compiling
from tools import environment, serve, system_packages

from unit.test_package import ROOT


def stub(folder: Path, name: str, line: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/bash\n{line}\n")
    (folder / name).chmod(0o755)


def check_python(python: str, path: Path) -> subprocess.CompletedProcess[str]:
    """Run the check with nothing on the PATH but the folder, and what the check itself needs."""
    path.mkdir(exist_ok=True)
    (path / "sed").symlink_to(shutil.which("sed") or "sed")
    command = [shutil.which("bash") or "bash", str(ROOT / "tools" / "check_python"), python, "test"]
    return subprocess.run(command, env={"PATH": str(path)}, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("version", "code"), [("2.7.18", 1), ("3.10.4", 1), ("3.11.0", 0), ("3.14.0", 0), ("4.0.0", 0)]
)
def test_python_version_is_checked(version: str, code: int, tmp_path: Path) -> None:
    stub(tmp_path / "bin", "python3", f"echo {version}")
    run = check_python("python3", tmp_path / "bin")
    assert run.returncode == code
    assert run.stderr.startswith(f"Crestgate needs Python 3.11 or later; python3 is {version}.\n") == (code == 1)


def test_another_python_is_proposed(tmp_path: Path) -> None:
    stub(tmp_path / "bin", "python3", "echo 3.9.2")
    stub(tmp_path / "bin", "python3.13", "exit 127")  # as pyenv does for a version that is not chosen
    stub(tmp_path / "bin", "python3.12", "echo 3.12.1")
    assert "Name another: make test PYTHON=python3.12\n" in check_python("python3", tmp_path / "bin").stderr


def test_missing_python_is_reported(tmp_path: Path) -> None:
    run = check_python("python3", tmp_path / "bin")
    assert run.returncode == 1
    assert "there is no python3" in run.stderr
    assert "apt-get install python3 python3-venv" in run.stderr


def test_make_creates_nothing_with_an_old_python(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "tools", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    before = sorted(os.listdir(tmp_path))
    stub(tmp_path.parent / "old", "python3", "echo 3.10.4")
    for goal in ("serve", "test"):
        command = ["make", "--no-print-directory", goal, f"PYTHON={tmp_path.parent}/old/python3"]
        run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert run.returncode != 0
        assert "python3 is 3.10.4." in run.stderr
    assert sorted(os.listdir(tmp_path)) == before


def test_python_without_pip_says_which_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(environment.importlib.util, "find_spec", lambda name: None)  # type: ignore[attr-defined]
    assert "apt-get install python3-venv" in (environment.missing_installer() or "")


def run_tool(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A tool on a machine without any program."""
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)


def test_missing_servers_are_named_without_apt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(system_packages, "SERVER_FOLDERS", [])
    monkeypatch.setenv("CRESTGATE_TEST_MYSQL_URL", "mysql://127.0.0.1/test")
    missing = system_packages.missing_packages("servers")
    assert missing == ["redis-server", "openssl", "postgresql", "nginx", "prometheus", "chromium"]
    text = system_packages.explain("servers", missing)
    assert "there is no apt-get" in text
    assert "redis-server, openssl, postgresql, nginx, prometheus, chromium" in text
    assert "CRESTGATE_TEST_POSTGRES_URL, CRESTGATE_TEST_REDIS_URL." in text
    assert "`make quick`" in text


def test_command_for_root_is_printed_where_there_is_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub(tmp_path / "bin", "apt-get", "exit 1")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert not system_packages.can_install()
    assert "As root: apt-get install --no-install-recommends nginx" in system_packages.explain("servers", ["nginx"])


def test_packages_of_a_missing_tool_are_named() -> None:
    run = run_tool("tools.system_packages", "go", PATH="")
    assert run.returncode == 1
    assert "golang-go" in run.stderr
    assert run_tool("tools.system_packages", "load", PATH="").returncode == 0  # the benchmark does without


def test_missing_compiler_is_named(tmp_path: Path) -> None:
    run = run_tool("tools.compile", str(tmp_path), PATH="")
    assert run.returncode == 1
    assert "The hot modules cannot be compiled" in run.stderr
    assert "gcc, libc6-dev" in run.stderr


def test_requirements_of_an_extra_include_those_it_refers_to() -> None:
    wanted = environment.requirements("extra", "server")
    assert {name.partition(">")[0] for name in wanted} >= {"PyYAML", "SQLAlchemy", "alembic", "typer", "uvicorn"}
    assert not [name for name in wanted if name.startswith("crestgate")]
    assert "pytest" not in " ".join(wanted)


def test_environment_is_current_for_one_interpreter_and_one_list(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    assert not environment.is_current(tmp_path, ["a"])
    (tmp_path / ".ready").write_text("\n".join([sys.version, sys.base_prefix, "a", ""]))
    assert environment.is_current(tmp_path, ["a"])
    assert not environment.is_current(tmp_path, ["a", "b"])
    (tmp_path / ".ready").write_text("\n".join(["3.12.0", sys.base_prefix, "a", ""]))
    assert not environment.is_current(tmp_path, ["a"])


def test_service_runs_compiled_only_if_the_source_has_not_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "clone"
    (source / "src").mkdir(parents=True)
    (source / "setup.py").write_text("")
    (source / "src" / "a.py").write_text("a = 1\n")
    monkeypatch.setattr(compiling, "ROOT", source)
    monkeypatch.setattr(serve, "ROOT", source)

    line, _, variables = serve.command(tmp_path)
    assert line.startswith("Running from the source. `make compile` takes about five minutes and makes ")
    assert variables == {"PYTHONPATH": str(source / "src")}

    (tmp_path / ".compiled").write_text(compiling.source_digest())
    assert serve.command(tmp_path) == (
        "Running the compiled build.",
        [str(tmp_path / "bin" / "crestgate"), "serve"],
        {},
    )

    (source / "src" / "a.py").write_text("a = 2\n")
    line, _, variables = serve.command(tmp_path)
    assert line.startswith("Running from the source, which has changed since it was compiled.")
    assert variables == {"PYTHONPATH": str(source / "src")}


def test_pip_installs_what_uv_could_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stub(tmp_path / "path", "uv", "echo no route to host; exit 1")
    stub(tmp_path / "bin", "python", f'[ "$1" = -c ] || echo "$@" > {tmp_path}/called')
    monkeypatch.setenv("PATH", f"{tmp_path}/path:{os.environ['PATH']}")
    environment.install(tmp_path, ["fastapi>=0.121"], "Installing")
    assert (tmp_path / "called").read_text() == "-m pip install --prefer-binary fastapi>=0.121\n"
    output = capsys.readouterr().out
    assert "uv could not: no route to host" in output
    assert "Installing with pip … done" in output


def test_uv_is_not_fetched_where_pip_has_an_index_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    assert environment.fetch_uv(Path(sys.executable), tmp_path) is None
    assert capsys.readouterr().out == ""


def test_copy_of_the_source_can_be_built(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    compiling.copy_source(source)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(tmp_path),
        ".",
    ]
    variables = {**os.environ, "CRESTGATE_PURE": "1", "PYTHONPATH": ""}
    run = subprocess.run(command, cwd=source, env=variables, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert list(tmp_path.glob("crestgate-*.whl"))
