"""A CLI for tests: reads JSON lines from stdin, does what they say, answers with one JSON line each.

{"run": CODE}    runs Python code; `answer` is what it leaves in the variable `result`
{"echo": TEXT}   answers the text
{"repeat": TEXT, "count": N}   answers a line that holds the text N times
{"exit": CODE}   answers and exits
Ends with 0 when stdin is closed.
"""

import json
import os
import sys


def answer(value: object) -> None:
    sys.stdout.write(json.dumps({"answer": value}) + "\n")
    sys.stdout.flush()


for line in sys.stdin:
    order = json.loads(line)
    if "run" in order:
        scope: dict[str, object] = {"result": None}
        try:
            exec(order["run"], scope)
        except OSError as error:
            scope["result"] = {"errno": error.errno}
        answer(scope["result"])
    elif "echo" in order:
        answer(order["echo"])
    elif "repeat" in order:
        answer(order["repeat"] * order["count"])
    elif "exit" in order:
        answer("bye")
        os._exit(order["exit"])
