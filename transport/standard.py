"""The standard services that stand beside a server's own, so that ordinary tools work with it.

Health (grpc.health.v1) says whether the server serves. Reflection (grpc.reflection.v1alpha) lists the services; it has
no descriptors of the methods, since their payloads are messages of `crypto.codec` and not of protobuf.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

Answer = Callable[[Any, Any], Awaitable[None]]


@dataclass(frozen=True)
class Standard:
    """A method: it reads the iterator of questions and writes to the context, in messages of these kinds."""

    answer: Answer
    asked: Any
    said: Any


class StandardServices:
    """Health and reflection of one server with one service of its own."""

    def __init__(self, service: str) -> None:
        self._service = service
        self._health = health.aio.HealthServicer()
        self._reflection = reflection.aio.ReflectionServicer([service, health.SERVICE_NAME, reflection.SERVICE_NAME])

    async def begin(self) -> None:
        """From now on the server serves."""
        for name in (self._service, health.OVERALL_HEALTH):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def end(self) -> None:
        """It serves no longer, and will not again."""
        await self._health.enter_graceful_shutdown()

    @property
    def methods(self) -> Mapping[str, Standard]:
        """By path."""
        asked, said = health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse
        shown = reflection_pb2.ServerReflectionRequest, reflection_pb2.ServerReflectionResponse
        return MappingProxyType(
            {
                f"/{health.SERVICE_NAME}/Check": Standard(self._check, asked, said),
                f"/{health.SERVICE_NAME}/Watch": Standard(self._watch, asked, said),
                f"/{reflection.SERVICE_NAME}/ServerReflectionInfo": Standard(self._reflect, *shown),
            }
        )

    async def _check(self, questions: AsyncIterator[Any], context: Any) -> None:
        async for question in questions:
            await context.write(await self._health.Check(question, context))
            return

    async def _watch(self, questions: AsyncIterator[Any], context: Any) -> None:
        async for question in questions:
            await self._health.Watch(question, context)

    async def _reflect(self, questions: AsyncIterator[Any], context: Any) -> None:
        answers: Any = self._reflection.ServerReflectionInfo(questions, context)  # typed as if it were awaited
        async for answer in answers:
            await context.write(answer)
