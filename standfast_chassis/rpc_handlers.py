"""Wraps a gRPC handler in one function, whatever its kind. Used by the server interceptors.

A streaming answer is written with `context.write`, both for handlers that yield and for those that write themselves:
wrapping only the first kind breaks the second.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc

Behaviour = Callable[[Any, grpc.aio.ServicerContext[Any, Any]], Any]
# Called with a function that runs the handler to its end and gives the answer (None for a stream), and the context.
Around = Callable[[Callable[[], Awaitable[Any]], grpc.aio.ServicerContext[Any, Any]], Awaitable[Any]]


def wrapped(handler: grpc.RpcMethodHandler[Any, Any], around: Around) -> grpc.RpcMethodHandler[Any, Any]:
    """`handler` with `around` called in place of each of its calls."""
    any_handler: Any = handler
    if handler.request_streaming and handler.response_streaming:
        make, behaviour = grpc.stream_stream_rpc_method_handler, any_handler.stream_stream
    elif handler.request_streaming:
        make, behaviour = grpc.stream_unary_rpc_method_handler, any_handler.stream_unary
    elif handler.response_streaming:
        make, behaviour = grpc.unary_stream_rpc_method_handler, any_handler.unary_stream
    else:
        make, behaviour = grpc.unary_unary_rpc_method_handler, any_handler.unary_unary
    run = _streaming(behaviour, around) if handler.response_streaming else _single(behaviour, around)
    answer: grpc.RpcMethodHandler[Any, Any] = make(
        run, request_deserializer=handler.request_deserializer, response_serializer=handler.response_serializer
    )
    return answer


def _single(behaviour: Behaviour, around: Around) -> Behaviour:
    async def run(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        async def inner() -> Any:
            answer = behaviour(request, context)
            if not inspect.isawaitable(answer):
                raise TypeError(f"{behaviour!r} is not asynchronous; every handler of this server must be")
            return await answer

        return await around(inner, context)

    return run


def _streaming(behaviour: Behaviour, around: Around) -> Behaviour:
    async def run(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        async def inner() -> None:
            answer = behaviour(request, context)
            if inspect.isasyncgen(answer):
                async with aclosing(answer):
                    async for message in answer:
                        await context.write(message)
            elif inspect.isawaitable(answer):
                await answer
            else:
                async for message in answer:
                    await context.write(message)

        await around(inner, context)

    return run
