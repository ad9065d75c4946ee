"""One span per model call that passes: `chat {model}`, CLIENT, child of the activation's span. No content.

Unknown usage is left out, never 0.
"""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind

from sandbox_manager.host.relay.answer import AnswerFacts
from standfast_chassis import span_names
from standfast_chassis.trace_context import context_from_traceparent
from standfast_chassis.tracing import set_error

HTTP_STATUS = "http.response.status_code"


class ModelCallSpan:
    """The span of one model call. `end` is idempotent."""

    def __init__(
        self,
        tracer: trace.Tracer,
        traceparent: str | None,
        provider: str,
        address: tuple[str, int],
        attributes: dict[str, str],
    ) -> None:
        # Never the relay's own current span: it is not this call's parent.
        parent = context_from_traceparent(traceparent)
        self._span: Span = tracer.start_span(span_names.OPERATION_MODEL, context=parent, kind=SpanKind.CLIENT)
        self._span.set_attributes(
            {
                span_names.GEN_AI_OPERATION_NAME: span_names.OPERATION_MODEL,
                span_names.GEN_AI_PROVIDER_NAME: provider,
                span_names.SERVER_ADDRESS: address[0],
                span_names.SERVER_PORT: address[1],
                **attributes,
            }
        )
        self._request_model: str | None = None
        self._ended = False

    def requested(self, model: str | None) -> None:
        """The request's own body names its model, if it could be read."""
        self._request_model = model

    def end(self, status: int | None, facts: AnswerFacts | None, error_type: str | None) -> None:
        """Ends the span. `error_type` None and a status below 400: the call went well."""
        if self._ended:
            return
        self._ended = True
        if self._request_model is not None:
            self._span.set_attribute(span_names.GEN_AI_REQUEST_MODEL, self._request_model)
        if status is not None:
            self._span.set_attribute(HTTP_STATUS, status)
            if status >= 400 and error_type is None:
                error_type = str(status)
        if facts is not None:
            self._learn(facts)
            error_type = error_type or facts.error_type
        model = self._request_model or (facts.model if facts is not None else None)
        if model is not None:
            self._span.update_name(span_names.model_span(model))
        if error_type is not None:
            set_error(self._span, error_type)
        self._span.end()

    def _learn(self, facts: AnswerFacts) -> None:
        texts = {span_names.GEN_AI_RESPONSE_MODEL: facts.model, span_names.GEN_AI_RESPONSE_ID: facts.message_id}
        self._span.set_attributes({name: value for name, value in texts.items() if value is not None})
        if facts.stop_reason is not None:
            self._span.set_attribute(span_names.GEN_AI_RESPONSE_FINISH_REASONS, [facts.stop_reason])
        self._span.set_attributes(usage_attributes(facts.usage))


def usage_attributes(usage: dict[str, int]) -> dict[str, int]:
    """Token counts under the conventions' names. AnswerFacts counts cached input apart, the conventions do not."""
    result: dict[str, int] = {}
    read, written = usage.get("cache_read_input_tokens"), usage.get("cache_creation_input_tokens")
    if "input_tokens" in usage:
        result[span_names.GEN_AI_USAGE_INPUT_TOKENS] = usage["input_tokens"] + (read or 0) + (written or 0)
    if "output_tokens" in usage:
        result[span_names.GEN_AI_USAGE_OUTPUT_TOKENS] = usage["output_tokens"]
    if read is not None:
        result[span_names.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS] = read
    if written is not None:
        result[span_names.GEN_AI_USAGE_CACHE_WRITE_INPUT_TOKENS] = written
    return result
