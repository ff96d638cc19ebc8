"""Compiles the .proto files of this folder into src/crestgate/protobuf/schema.py.

    python proto/compile.py            writes it
    python proto/compile.py --check    exits with 1 if it is not what the files here say

What is written is data: the descriptors of the files. The service makes its messages from them when it starts, so no
generated code has to fit the protobuf that is installed there.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import grpc_tools
from google.protobuf import descriptor_pb2
from grpc_tools import protoc

HERE = Path(__file__).resolve().parent
SCHEMA = HERE.parent / "src" / "crestgate" / "protobuf" / "schema.py"
COMMAND = "python proto/compile.py"
WIDTH = 108
"""Characters of what stands between the quotes of one line."""
OPENING = f'''"""The descriptors of the .proto files in proto/, for messages.py.

Made by `{COMMAND}`: change those, and run it.
"""

from __future__ import annotations

__all__ = ["FILES"]

FILES: dict[str, bytes] = {{
'''


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        sys.stderr.write(f"usage: {COMMAND} [--check]\n")
        return 2
    wanted = written(compiled())
    if not arguments:
        SCHEMA.write_text(wanted)
        return 0
    if SCHEMA.exists() and SCHEMA.read_text() == wanted:
        return 0
    sys.stderr.write(f"{SCHEMA.relative_to(HERE.parent)} is not what the files in proto/ say: run {COMMAND}\n")
    return 1


def compiled() -> list[descriptor_pb2.FileDescriptorProto]:
    """The files of this folder, each after those that it imports. What protobuf brings itself is not among them."""
    names = sorted(str(path.relative_to(HERE)) for path in HERE.rglob("*.proto"))
    google = Path(grpc_tools.__file__).parent / "_proto"
    with tempfile.NamedTemporaryFile() as output:
        failed = protoc.main(
            ["protoc", f"-I{HERE}", f"-I{google}", "--include_imports", f"--descriptor_set_out={output.name}", *names]
        )
        if failed:
            raise SystemExit(f"protoc could not read the files in {HERE.name}/")
        every = descriptor_pb2.FileDescriptorSet.FromString(output.read())
    return [file for file in every.file if file.name in names]


def written(files: list[descriptor_pb2.FileDescriptorProto]) -> str:
    """The module, formatted as ruff does it."""
    lines = [OPENING]
    for file in files:
        data = file.SerializeToString(deterministic=True)
        lines += [f'    "{file.name}": (\n', *[f'        b"{line}"\n' for line in literals(data)], "    ),\n"]
    return "".join([*lines, "}\n"])


def literals(data: bytes) -> list[str]:
    """Bytes as Python has them between double quotes, in lines."""
    lines = [""]
    for byte in data:
        shown = chr(byte) if 0x20 <= byte < 0x7F and byte not in b'"\\' else f"\\x{byte:02x}"
        if len(lines[-1]) + len(shown) > WIDTH:
            lines.append("")
        lines[-1] += shown
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
