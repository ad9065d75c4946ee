"""Names of spans and attributes. The `gen_ai.*` ones are those of the OpenTelemetry GenAI conventions v0.1.0, as text,
since the constants in the opentelemetry packages are marked deprecated; we invent none under that prefix.

Unknown values are left out of a span, never set to 0 or "".
"""

from __future__ import annotations

# Spans of ours, in the order of a turn.
PREPARE = "prepare"
ACTIVATE = "activate"
ADMIT = "admit"
NATIVE_TURN = "native turn"
QUIESCE = "quiesce"
VERIFY_RUNNER = "verify runner"
VERIFY_MANAGER = "verify manager"
SETTLE = "settle"


def turn_span(agent: str) -> str:
    return f"invoke_agent {agent}"


def model_span(model: str) -> str:
    return f"chat {model}"


def tool_span(tool: str) -> str:
    return f"execute_tool {tool}"


# Values of gen_ai.operation.name.
OPERATION_TURN = "invoke_agent"
OPERATION_MODEL = "chat"
OPERATION_TOOL = "execute_tool"

GEN_AI_OPERATION_NAME = "gen_ai.operation.name"
GEN_AI_AGENT_NAME = "gen_ai.agent.name"
GEN_AI_AGENT_VERSION = "gen_ai.agent.version"
GEN_AI_CONVERSATION_ID = "gen_ai.conversation.id"
GEN_AI_PROVIDER_NAME = "gen_ai.provider.name"
GEN_AI_REQUEST_MODEL = "gen_ai.request.model"
GEN_AI_RESPONSE_MODEL = "gen_ai.response.model"
GEN_AI_RESPONSE_ID = "gen_ai.response.id"
GEN_AI_RESPONSE_FINISH_REASONS = "gen_ai.response.finish_reasons"
GEN_AI_USAGE_INPUT_TOKENS = "gen_ai.usage.input_tokens"
GEN_AI_USAGE_OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS = "gen_ai.usage.cache_read.input_tokens"
GEN_AI_USAGE_CACHE_WRITE_INPUT_TOKENS = "gen_ai.usage.cache_write.input_tokens"
GEN_AI_USAGE_REASONING_OUTPUT_TOKENS = "gen_ai.usage.reasoning.output_tokens"
GEN_AI_TOOL_NAME = "gen_ai.tool.name"
GEN_AI_TOOL_CALL_ID = "gen_ai.tool.call.id"
GEN_AI_TOOL_TYPE = "gen_ai.tool.type"

ERROR_TYPE = "error.type"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"
CONTAINER_ID = "container.id"
CONTAINER_IMAGE_NAME = "container.image.name"
CONTAINER_IMAGE_REPO_DIGESTS = "container.image.repo_digests"
HOST_ID = "host.id"

RPC_SYSTEM_NAME = "rpc.system.name"
RPC_METHOD = "rpc.method"
RPC_RESPONSE_STATUS_CODE = "rpc.response.status_code"

STANDFAST_TENANT = "standfast.tenant"
STANDFAST_TURN_ID = "standfast.turn.id"
STANDFAST_TURN_OUTCOME = "standfast.turn.outcome"
STANDFAST_CONTEXT_STATE = "standfast.context.state"
STANDFAST_CONTEXT_CAUSE = "standfast.context.cause"
STANDFAST_REASON = "standfast.reason"
STANDFAST_MEMBER_ID = "standfast.member.id"
STANDFAST_GROUP_ID = "standfast.group.id"
STANDFAST_SLOT = "standfast.slot"
STANDFAST_CONTAINER_GENERATION = "standfast.container.generation"
STANDFAST_PROCESS_GENERATION = "standfast.process.generation"
STANDFAST_ACTIVATION_GENERATION = "standfast.activation.generation"
STANDFAST_LEASE_GENERATION = "standfast.lease.generation"
STANDFAST_VERDICT = "standfast.verdict"
STANDFAST_STORE_VERDICT = "standfast.store.verdict"
STANDFAST_HISTORY_VERDICT = "standfast.history.verdict"
STANDFAST_RELEASE_SHA = "standfast.release.sha"
