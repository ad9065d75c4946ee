"""A deterministic model provider on loopback, with scripted faults and a request log."""

from standfast_lab.provider.directives import DirectiveError
from standfast_lab.provider.log import RequestLog, Row, read_log
from standfast_lab.provider.script import Step
from standfast_lab.provider.server import LabProvider

__all__ = ["DirectiveError", "LabProvider", "RequestLog", "Row", "Step", "read_log"]
