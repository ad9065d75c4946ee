"""The sandbox's supervisor: process 1 of a container, or a plain process on the `local` engine.

Standard library only, Python 3.11, relative imports only: the same files run as `python3 -m guest` in the image
and as `python -m sandbox_manager.guest` on a host.
"""

PROTOCOL_VERSION = 1
SUPERVISOR_VERSION = "1.0.0"
