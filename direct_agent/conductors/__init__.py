"""The tasks around the attempt machine: one attempt, one round, one auxiliary call."""
