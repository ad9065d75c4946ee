"""What an engine refuses or cannot do. `reason` is a word of `error_reason.proto`."""

from __future__ import annotations

from standfast_chassis.errors import StandfastError


class EngineError(StandfastError):
    """Base of the engines' errors."""


class EngineUnavailableError(EngineError):
    """The engine did not answer. It says nothing about any container."""

    reason = "ENGINE_UNAVAILABLE"

    def __init__(self, engine: str, why: str) -> None:
        super().__init__(
            f"{engine}: expected the engine to answer, found: {why}. Start it (scripts/engine start) and try again.",
            {"engine": engine, "why": why},
        )


class EngineRefusedError(EngineError):
    """The engine answered and refused, for a reason that has no class of its own."""

    reason = "INTERNAL"


class ImageMissingError(EngineError):
    """The engine has no such image."""

    reason = "IMAGE_MISSING"


class SupervisorMissingError(EngineError):
    """The image runs something else than our supervisor."""

    reason = "SUPERVISOR_MISSING"


class SandboxAbsentError(EngineError):
    """The engine answers and has no such container."""

    reason = "CONTAINER_GONE"

    def __init__(self, engine: str, container: str) -> None:
        super().__init__(f"{engine}: has no container {container}", {"engine": engine, "container": container})


class NameTakenError(EngineError):
    """Another container has this name. Inspect it: a create whose answer was lost may have made it."""

    reason = "CONTAINER_CHANGED"

    def __init__(self, engine: str, name: str) -> None:
        super().__init__(
            f"{engine}: expected the name {name} to be free, found a container; inspect it, and remove it if it is not wanted",
            {"engine": engine, "name": name},
        )


class SandboxPathError(EngineError):
    """A retained folder cannot lie there."""

    reason = "STATE_FOLDER_UNUSABLE"
