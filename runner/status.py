"""Which gRPC code each reason has, for the runner's callers. Every reason of `error_reason.proto`, and the chassis's own.

`UNAVAILABLE` means: retry blindly, nothing was sent. After the message was forwarded only ABORTED is used.
"""

from __future__ import annotations

import grpc

_BY_CODE: dict[grpc.StatusCode, tuple[str, ...]] = {
    grpc.StatusCode.FAILED_PRECONDITION: (
        "CONTEXT_LOST",
        "LEGACY_CONVERSATION",
        "LOCATOR_REQUIRED",
        "LOCATOR_MISMATCH",
        "NATIVE_SESSION_MISMATCH",
        "HELPER_VERSION_MISMATCH",
        "IMAGE_RETIRED",
        "HISTORY_BROKEN",
        "HISTORY_TORN",
        "HISTORY_CHANGED_OUTSIDE_TURN",
        "STORE_MISSING",
        "STORE_BEHIND",
        "CONTAINER_GONE",
        "CONTAINER_CHANGED",
        "SESSION_NOT_RESUMED",
        "ACTIVATION_USED",
        "NOT_ENDED",
        "NATIVE_END_SEEN",
        "CONVERSATION_REMOVED",
        "AGENT_MISMATCH",
        "STORE_UNWRITABLE",
        "HOST_UNKNOWN",
        "SUPERVISOR_MISSING",
        "IMAGE_MISSING",
        "EVIDENCE_MISSING",
        "EVIDENCE_CONTRADICTED",
        "CLI_VERSION_MISMATCH",
        "UPDATER_ENABLED",
        "GATE_REFUSED",
        "ADMISSION_INVALID",
        "RECLAIM_INCOMPLETE",
        "HANDSHAKE_FAILED",
        "UNANSWERED_QUESTION",
        "PROVIDER_ERROR",
        "NATIVE_ERROR",
        "NOT_DELIVERED_BY_RELAY",
        "IDENTITY_UNPROVEN",
        "VERDICTS_DIFFER",
        "ISOLATION_REQUIRED",
        "STATE_FOLDER_IN_USE",
        "STATE_FOLDER_UNUSABLE",
        "ADDRESS_IN_USE",
        "STORE_TOO_NEW",
        "STORE_FOREIGN",
        "KEY_FILE_UNUSABLE",
        "SETTINGS_INVALID",
        "NATIVE_REQUEST_CLOSED",
        "TURN_NOT_QUEUED",
    ),
    grpc.StatusCode.ABORTED: (
        "TURN_ELSEWHERE",
        "CONVERSATION_BUSY",
        "GENERATION_STALE",
        "ACTIVATION_EXPIRED",
        "OBSERVATION_PENDING",
        "SUPERVISOR_LOST",
        "SLOT_BUSY",
        "CLI_DIED",
        "ATTACH_LOST",
    ),
    grpc.StatusCode.ALREADY_EXISTS: ("MESSAGE_CHANGED", "CONVERSATION_EXISTS"),
    grpc.StatusCode.NOT_FOUND: ("ACTIVATION_UNKNOWN", "CONVERSATION_UNKNOWN", "TURN_UNKNOWN", "NATIVE_REQUEST_UNKNOWN"),
    grpc.StatusCode.INVALID_ARGUMENT: (
        "AGENT_UNKNOWN",
        "SETTING_UNKNOWN",
        "MESSAGE_EMPTY",
        "MESSAGE_TOO_LARGE",
        "MESSAGE_HAS_NUL",
        "ID_INVALID",
        "WHEN_BUSY_UNSUPPORTED",
        "REQUEST_INVALID",
        "ANSWER_INVALID",
        "SIGNATURE_INVALID",
        "TOKEN_REJECTED",
    ),
    grpc.StatusCode.UNIMPLEMENTED: ("CAPABILITY_NOT_BUILT",),
    grpc.StatusCode.RESOURCE_EXHAUSTED: ("STORAGE_FULL", "QUEUE_FULL", "NO_HOST", "TASKS_FULL", "STORE_BUSY"),
    grpc.StatusCode.UNAVAILABLE: (
        "HOST_UNAVAILABLE",
        "MANAGER_UNAVAILABLE",
        "ENGINE_UNAVAILABLE",
        "SUPERVISOR_UNAVAILABLE",
        "TASKS_CLOSED",
        "STORE_CLOSED",
    ),
    grpc.StatusCode.CANCELLED: ("CANCELLED_BY_CLIENT",),
    grpc.StatusCode.DEADLINE_EXCEEDED: ("TURN_TIMEOUT", "SILENCE_TIMEOUT"),
    grpc.StatusCode.DATA_LOSS: ("STORE_DAMAGED",),
    grpc.StatusCode.INTERNAL: ("INTERNAL", "STORE_ERROR"),
}

CODES: dict[str, grpc.StatusCode] = {reason: code for code, reasons in _BY_CODE.items() for reason in reasons}


def is_recorded(reason: str) -> bool:
    """Whether a refusal for this reason is the turn's end, repeated for the same turn_id.

    Someone must fix something first; everything else (busy, elsewhere, away, exhausted) records nothing, so that the
    same turn_id may try again.
    """
    return CODES.get(reason) is grpc.StatusCode.FAILED_PRECONDITION
