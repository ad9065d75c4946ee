"""What every Standfast process stands on: storage, logs, traces, keys, gRPC plumbing.

Nothing here decides about turns, identities or native stores. Two checks that run the same function are one check,
so no verification of those lives in this package.
"""

import os

# Read by gRPC when it starts. Our processes start many children, always by fork and exec in one step, so gRPC's own
# handlers around fork() would only cost time and can deadlock.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
# gRPC's C core writes to stderr past our logs: only what it calls errors.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
