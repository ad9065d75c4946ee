"""Conducts: one task owns each machine of the host agent; what the engine, the supervisor and the runner do comes in as events."""
