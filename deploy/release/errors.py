"""The one error of the build: says what was expected, what was found, and what to do."""


class BuildError(Exception):
    """A build step cannot go on. Its text is shown to the person at the terminal, without a traceback."""
