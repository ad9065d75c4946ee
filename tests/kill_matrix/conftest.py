"""The kill matrix uses the fixtures of the scenarios."""

from __future__ import annotations

from tests.scenarios.conftest import short_folder, stub_tools

__all__ = ["short_folder", "stub_tools"]
