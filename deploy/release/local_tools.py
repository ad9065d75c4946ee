"""`scripts/local_tools`: lays out the pinned CLIs for the `local` engine, measures them, writes their manifest, prints the tool folder."""

from __future__ import annotations

import sys

from deploy.release.arguments import agent_names, cache_folder, parser
from deploy.release.context import REPO
from deploy.release.errors import BuildError
from deploy.release.manifest import manifest_of, read_manifest, release_sha, write_manifest
from deploy.release.measure import measured_tools
from deploy.release.pins import chosen_pins
from deploy.release.tool_folder import laid_out_before, laid_out_tools, local_image_id


def main() -> int:
    given = parser("scripts/local_tools", __doc__.partition(": ")[2], "local-manifest.json").parse_args()
    try:
        # The folder is measured as a whole: what was laid out in it before stays, at its pin.
        pins = chosen_pins([*agent_names(given.agents), *laid_out_before(cache_folder())])
        tools = laid_out_tools(pins, cache_folder())
        measured = measured_tools(tools, pins)
        manifest = manifest_of(local_image_id(measured), measured, release_sha(REPO), read_manifest(given.manifest))
        write_manifest(given.manifest, manifest)
    except BuildError as error:
        print(f"local_tools: {error}", file=sys.stderr)
        return 1
    print(tools)
    return 0


if __name__ == "__main__":
    sys.exit(main())
