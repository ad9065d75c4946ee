"""Sizes on the wire, in bytes. The design's: a message at most 4 MiB, any chunk at most 1 MiB."""

CHUNK_MAX_BYTES = 1024 * 1024
MESSAGE_MAX_BYTES = 4 * 1024 * 1024
# Room for the fields around a message of the full size.
GRPC_MESSAGE_MAX_BYTES = MESSAGE_MAX_BYTES + 256 * 1024
# An answer may hold the whole text of a reply, or a turn's whole output. No text is longer than what a CLI may print in a turn (64 MiB).
GRPC_ANSWER_MAX_BYTES = 64 * 1024 * 1024 + 256 * 1024
