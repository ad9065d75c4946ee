"""Makes a tool folder for the `local` engine with a stub in place of Claude Code, and the manifest that belongs to it.

FOLDER/tools/claude-code/claude           the program, one executable file
FOLDER/tools/claude-code/gates/           where tests hold it (stub_claude/gates.py)
FOLDER/tools/claude-code/wrapped/claude   what a shim wraps, if there is one
FOLDER/manifest.json                      of the form that scripts/local_tools writes

Measured by the same code as the pinned CLI: the supervisor of this tree says what it finds, nothing is written down by hand.
"""

from __future__ import annotations

import hashlib
import io
import py_compile
import shutil
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from deploy.release.context import REPO
from deploy.release.manifest import manifest_of, release_sha, write_manifest
from deploy.release.measure import measured_tools
from deploy.release.pins import AgentPin
from deploy.release.tool_folder import local_image_id
from tests.stub_cli.stub_claude import VERSION

_AGENT = "claude-code"
STUB = Path(__file__).parent / "stub_claude"


@dataclass(frozen=True)
class ToolFolder:
    """What a fleet on `local` needs, and where its stubs are held."""

    tools: Path
    manifest: Path

    @property
    def executable(self) -> Path:
        """The CLI as the launch spec names it."""
        return self.tools / _AGENT / "claude"

    @property
    def gates(self) -> Path:
        """The folder of the `POINT.hold` files."""
        return self.tools / _AGENT / "gates"


def make_tool_folder(folder: Path, *, program: tuple[Path, ...] = (STUB,), wrapped: Path | None = None) -> ToolFolder:
    """A tool folder with the stub, or with another program; `wrapped` is laid where a shim looks for what it wraps."""
    made = ToolFolder(folder / "tools", folder / "manifest.json")
    made.gates.mkdir(parents=True)
    write_program(program, made.executable)
    if wrapped is not None:
        (made.executable.parent / "wrapped").mkdir()
        (made.executable.parent / "wrapped" / "claude").symlink_to(wrapped)
    write_manifest(made.manifest, _manifest(made.tools, made.executable))
    return made


def write_program(packages: tuple[Path, ...], target: Path) -> None:
    """One executable file of packages with their bytecode: it starts in 0.1 s. The first has `main.main(argv, executable)`."""
    held = io.BytesIO()
    with tempfile.TemporaryDirectory() as compiled, zipfile.ZipFile(held, "w") as archive:
        for source in (source for package in packages for source in sorted(package.glob("*.py"))):
            package = source.parent
            code = Path(compiled) / f"{package.name}.{source.stem}.pyc"
            py_compile.compile(
                str(source),
                cfile=str(code),
                dfile=f"{package.name}/{source.name}",
                doraise=True,
                invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
            )
            archive.writestr(zipfile.ZipInfo(f"{package.name}/{source.name}c"), code.read_bytes())
        start = f"import sys\nfrom {packages[0].name}.main import main\nsys.exit(main(sys.argv[1:], sys.argv[0]))\n"
        archive.writestr(zipfile.ZipInfo("__main__.py"), start)
    target.parent.mkdir(parents=True, exist_ok=True)
    python = Path(sys.executable).resolve()
    target.write_bytes(f"#!{python} -ISs\n".encode() + held.getvalue())
    target.chmod(0o755)


def _manifest(tools: Path, executable: Path) -> dict[str, object]:
    pin = AgentPin(
        agent=_AGENT,
        version=VERSION,
        package="",
        integrity="",
        member="",
        member_sha256=hashlib.sha256(executable.read_bytes()).hexdigest(),
        executable=executable.name,
    )
    measured = measured_tools(tools, [pin])
    return manifest_of(local_image_id(measured), measured, release_sha(REPO), None)


def remove_gates(folder: ToolFolder) -> None:
    """Opens all gates and forgets who came by."""
    shutil.rmtree(folder.gates)
    folder.gates.mkdir()
