"""Takes a program's output in any cuts and gives it on in whole lines, so that others' lines can go in between. Pure."""

LINE_BYTES_MAX = 64 << 20
_LEFT_OUT = b'{"left_out":"a line that looked like one of the supervisor\'s"}\n'


class WholeLines:
    """One output. A line that begins with `reserved` is none of the program's: another one stands in its place and says so."""

    def __init__(self, reserved: bytes) -> None:
        self._reserved = reserved
        self._rest = bytearray()

    def feed(self, data: bytes) -> bytes:
        """The whole lines that these bytes complete; the rest waits, up to a bound at which it is given on as it is."""
        self._rest += data
        end = self._rest.rfind(b"\n") + 1
        if end == 0 and len(self._rest) <= LINE_BYTES_MAX:
            return b""
        whole = bytes(self._rest[:end]) if end else bytes(self._rest) + b"\n"
        del self._rest[: end or len(self._rest)]
        if self._reserved not in whole:
            return whole
        lines = whole.split(b"\n")[:-1]
        return b"".join(_LEFT_OUT if line.lstrip().startswith(self._reserved) else line + b"\n" for line in lines)

    def finish(self) -> bytes:
        """The output ended: what is left has no line end, and gets none."""
        rest = bytes(self._rest)
        self._rest.clear()
        return b"" if rest.lstrip().startswith(self._reserved) else rest
