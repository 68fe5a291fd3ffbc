"""The standard services that stand beside a server's own, so that ordinary tools work with it.

Health (grpc.health.v1) says whether the server serves. It is made here, since the one that gRPC brings has all who
watch wait for the slowest of them. Reflection (grpc.reflection.v1alpha) lists the services; it has no descriptors of
the methods, since their payloads are messages of `crypto.codec` and not of protobuf.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

Answer = Callable[[Any, Any], Awaitable[None]]
Status = health_pb2.HealthCheckResponse


@dataclass(frozen=True)
class Standard:
    """A method: it reads the iterator of questions and writes to the context, in messages of these kinds."""

    answer: Answer
    asked: Any
    said: Any


class StandardServices:
    """Health and reflection of one server with one service of its own, which serves until `end`."""

    def __init__(self, service: str) -> None:
        self._known = (service, health.OVERALL_HEALTH)
        self._ended = asyncio.Event()
        self._reflection = reflection.aio.ReflectionServicer([service, health.SERVICE_NAME, reflection.SERVICE_NAME])

    def end(self) -> None:
        """The server serves no longer, and will not again."""
        self._ended.set()

    @property
    def methods(self) -> Mapping[str, Standard]:
        """By path."""
        shown = reflection_pb2.ServerReflectionRequest, reflection_pb2.ServerReflectionResponse
        return MappingProxyType(
            {
                f"/{health.SERVICE_NAME}/Check": Standard(self._check, health_pb2.HealthCheckRequest, Status),
                f"/{health.SERVICE_NAME}/Watch": Standard(self._watch, health_pb2.HealthCheckRequest, Status),
                f"/{reflection.SERVICE_NAME}/ServerReflectionInfo": Standard(self._reflect, *shown),
            }
        )

    async def _check(self, questions: AsyncIterator[Any], context: Any) -> None:
        async for question in questions:
            if question.service not in self._known:
                await context.abort(grpc.StatusCode.NOT_FOUND)
            await context.write(self._status(question.service))
            return

    async def _watch(self, questions: AsyncIterator[Any], context: Any) -> None:
        async for question in questions:
            await context.write(self._status(question.service))
            await self._ended.wait()
            await context.write(self._status(question.service))
            return

    def _status(self, service: str) -> Any:
        if service not in self._known:
            return Status(status=Status.SERVICE_UNKNOWN)
        return Status(status=Status.NOT_SERVING if self._ended.is_set() else Status.SERVING)

    async def _reflect(self, questions: AsyncIterator[Any], context: Any) -> None:
        answers: Any = self._reflection.ServerReflectionInfo(questions, context)  # typed as if it were awaited
        async for answer in answers:
            await context.write(answer)
