"""What a tool refuses. The text of each is for the model: what was expected, what was found, what to do."""

from __future__ import annotations


class ToolError(Exception):
    """A call that did not do its work. Nothing was changed unless the text says so."""


class ArgumentError(ToolError):
    """The arguments are not what the tool's schema says."""


class ConfinementError(ToolError):
    """A path that leads, or could lead, out of the workspace."""


class PathError(ToolError):
    """A path at which there is not what the tool needs: nothing, a folder, a device."""


class ChangedMeanwhileError(ToolError):
    """The file is no longer what was read before the intent was recorded. Nothing was written."""
