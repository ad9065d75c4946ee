"""An import-linter contract: what the modules of some folders may import directly.

It names folders, not modules, and is kept by folders that do not exist yet. Direct imports are enough where the permitted folders
are themselves under a contract of this kind: what they may not import, nobody reaches through them.
"""

from __future__ import annotations

import sys

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output

# Clock, randomness, I/O, tasks, the wire and generated code. `pathlib` and `uuid` stay usable for values.
IMPURE = frozenset(
    """
    asyncio concurrent contextvars ctypes multiprocessing threading queue
    time sched random secrets
    os io shutil tempfile glob fcntl mmap select selectors signal socket socketserver ssl subprocess pty resource
    http urllib sqlite3 logging
    grpc grpc_health grpc_reflection grpc_status google standfast
    docker sqlite_utils httpx2 h11 uvicorn structlog typer rich opentelemetry pydantic_settings
    """.split()
)


class PermittedImports(Contract):
    """Modules below `sources` import, of the tree's own packages, only their own source folder and those in `own`.

    `never` adds a rule for everything else: `pure` forbids the modules in `IMPURE`; `not in the standard library` forbids all others.
    """

    type_name = "permitted"

    # import-linter puts the parsed value in the place of each field descriptor, which its types do not say.
    sources: list[str] = fields.ListField(subfield=fields.StringField())  # type: ignore[assignment]  # see above
    own: list[str] = fields.ListField(subfield=fields.StringField())  # type: ignore[assignment]  # see above
    never: str | None = fields.StringField(required=False)  # type: ignore[assignment]  # see above

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        roots = set(self.session_options["root_packages"])
        broken = []
        for module in sorted(graph.modules):
            source = _folder_of(module, self.sources)
            if source is None:
                continue
            for imported in sorted(graph.find_modules_directly_imported_by(module)):
                why = self._refused(imported, source, roots)
                if why:
                    lines = graph.get_import_details(importer=module, imported=imported)
                    broken.append(
                        f"{module} imports {imported}: {why} (line {lines[0]['line_number'] if lines else '?'})"
                    )
        return ContractCheck(kept=not broken, metadata={"broken": broken})

    def _refused(self, imported: str, source: str, roots: set[str]) -> str | None:
        top = imported.partition(".")[0]
        if top in roots:
            # A package's own __init__ holds no code of its own to speak of: naming a sub-module passes through it.
            permitted = [source, *self.own]
            is_passed_through = any(name.startswith(imported + ".") for name in permitted)
            return (
                None
                if _folder_of(imported, permitted) or is_passed_through
                else f"only {', '.join(permitted)} are permitted"
            )
        if self.never == "pure":
            return "a pure module does no such thing" if top in IMPURE else None
        if self.never == "not in the standard library":
            return None if top in sys.stdlib_module_names else "it is not in the standard library"
        return None

    def render_broken_contract(self, check: ContractCheck) -> None:
        for line in check.metadata["broken"]:
            output.print_error(line)


def _folder_of(module: str, folders: list[str]) -> str | None:
    """The folder that `module` is or lies in."""
    for folder in folders:
        if module == folder or module.startswith(folder + "."):
            return folder
    return None
