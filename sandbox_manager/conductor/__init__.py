"""Conducts: what a call or the passing of time asks for is done here, one conversation at a time. What is true is decided in core/."""
