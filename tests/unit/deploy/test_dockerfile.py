"""deploy/Dockerfile, read as Docker reads it: what runs, as whom, and what is in the image."""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
from pathlib import Path

import pytest

from headgate.config.settings import load_settings
from headgate.service.auth.guard import is_loopback

ROOT = Path(__file__).parent.parent.parent.parent
DOCKERFILE = ROOT / "deploy" / "Dockerfile"


def stages() -> list[list[tuple[str, str]]]:
    """The instructions of each stage, each with what stands behind it."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    found: list[list[tuple[str, str]]] = [[]]
    for line in filter(None, lines):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            found.append([])
        found[-1].append((word, rest.strip()))
    return found[1:]


def said(instructions: list[tuple[str, str]], word: str) -> list[str]:
    return [rest for name, rest in instructions if name == word]


BUILD, RUNTIME = stages()


def environment() -> dict[str, str]:
    return dict(pair.partition("=")[::2] for line in said(RUNTIME, "ENV") for pair in shlex.split(line))


def test_instructions_are_those_that_docker_knows() -> None:
    known = {"FROM", "RUN", "WORKDIR", "COPY", "ENV", "VOLUME", "USER", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK"}
    known |= {"ENTRYPOINT", "CMD"}
    assert {word for stage in (BUILD, RUNTIME) for word, _ in stage} <= known


def test_compiler_stays_in_the_first_stage() -> None:
    assert "gcc" in " ".join(said(BUILD, "RUN"))
    assert said(BUILD, "FROM")[0].endswith(" AS build")
    assert "apt-get" not in " ".join(said(RUNTIME, "RUN"))
    assert said(RUNTIME, "COPY") == ["--from=build /opt/headgate /opt/headgate"]
    assert said(RUNTIME, "FROM")[0].endswith("-slim")


def test_everything_is_installed_from_the_source_tree_and_compiled() -> None:
    (install,) = [line for line in said(BUILD, "RUN") if "pip install" in line]
    assert "'.[all]'" in install
    assert "grep -q '(compiled)'" in install


def test_runs_as_nobody_in_particular_by_number() -> None:
    (user,) = said(RUNTIME, "USER")
    number, group = map(int, user.split(":"))
    assert number > 0
    made = " ".join(said(RUNTIME, "RUN"))
    assert f"--uid {number} " in made
    assert f"--gid {group} " in made
    words = [word for word, _ in RUNTIME]
    assert words.index("USER") < words.index("ENTRYPOINT")
    assert words.index("RUN") < words.index("USER"), "the user's folder is made by root"


@pytest.mark.parametrize("word", ["ENTRYPOINT", "CMD"])
def test_no_shell_stands_between_docker_and_the_service(word: str) -> None:
    (written,) = said(RUNTIME, word)
    assert all(isinstance(part, str) for part in json.loads(written))


def test_starts_the_service() -> None:
    assert json.loads(said(RUNTIME, "ENTRYPOINT")[0]) + json.loads(said(RUNTIME, "CMD")[0]) == ["headgate", "serve"]
    assert environment()["PATH"].split(":")[0] == "/opt/headgate/bin"
    assert said(RUNTIME, "STOPSIGNAL") == ["SIGTERM"]


def test_listens_for_others_where_its_ports_and_its_health_check_say() -> None:
    settings = load_settings(None, {**environment(), "HEADGATE_ADMIN_KEY": "0123456789abcdef"})
    server = settings.server
    assert not is_loopback(server.http.host)
    assert not is_loopback(server.grpc.host)
    assert said(RUNTIME, "EXPOSE") == [f"{server.http.port} {server.grpc.port}"]
    (check,) = said(RUNTIME, "HEALTHCHECK")
    options, _, command = check.partition("CMD ")
    assert {option.partition("=")[0] for option in options.split()} >= {"--interval", "--timeout", "--start-period"}
    program, flag, code = json.loads(command)
    assert (program, flag) == ("python", "-c")
    compile(code, "HEALTHCHECK", "exec")
    assert f"'127.0.0.1', {settings.server.http.port}" in code
    assert "'/healthz'" in code


def test_no_secret_is_in_the_image() -> None:
    assert not [name for name in environment() if re.search("KEY|TOKEN|PASSWORD|STORE", name)]
    assert not said(BUILD, "ARG")


def test_what_it_writes_is_in_a_volume() -> None:
    (volume,) = json.loads(said(RUNTIME, "VOLUME")[0])
    assert said(RUNTIME, "WORKDIR") == [volume], ".headgate is made in the folder it is started in"
    assert f"-m 0700 {volume}" in " ".join(said(RUNTIME, "RUN"))


def test_what_is_copied_is_there_and_not_ignored() -> None:
    copied = [name.removeprefix("./") for line in said(BUILD, "COPY") for name in line.split()[:-1]]
    assert {"pyproject.toml", "setup.py", "src"} <= {*copied}
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    kept = {line[1:] for line in ignored if line.startswith("!")}
    assert "*" in ignored, "nothing gets in unless it is named"
    assert {*copied} == kept
    for name in copied:
        assert (ROOT / name).exists(), name
    taken_away = [line for line in ignored if line.startswith("**/")]
    for secret in ("__pycache__", "headgate.egg-info", "core.so"):
        assert any(fnmatch.fnmatch(secret, line.removeprefix("**/")) for line in taken_away), secret
