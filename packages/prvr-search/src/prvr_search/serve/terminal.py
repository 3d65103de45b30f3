"""Searches of the command `prvr search`, which the server answers as the command itself would."""

import asyncio
import hmac
import json
import logging
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.exceptions import HTTPException

import prvr
from prvr.data.atomic import replace_file
from prvr.errors import PrvrError
from prvr_search import Library
from prvr_search.serve.service import Service
from prvr_search.warm import ADDRESS, GREETING_SECONDS, LINE, Record, proof, read_record, record_file

logger = logging.getLogger(__name__)
_CONNECTIONS = 32


@dataclass(frozen=True)
class Answers:
    """How searches of commands are answered.

    Args:
        answer: the output of a search, by its request; called in the thread of the searches.
        stamp: what `prvr_search.warm.stamp` gave when the process began.
    """

    answer: Callable[[Any], dict[str, str]]
    stamp: str


class Endpoint:
    """Answers searches of commands at a port of this machine, for those who can read a file of the library.

    Args:
        library: what is served.
        service: whose thread searches.
        answers: how they are answered.
    """

    def __init__(self, library: Library, service: Service, answers: Answers) -> None:
        self._service, self._answers, self._token = service, answers, secrets.token_hex(32)
        self._file = record_file(library.store.home, library.folder)
        self._server: asyncio.Server | None = None
        self._open = 0

    async def start(self) -> None:
        """Listens, and says where. If the library cannot be written, nobody is answered."""
        try:
            self._server = await asyncio.start_server(self._serve, ADDRESS, 0, limit=LINE)
            port = self._server.sockets[0].getsockname()[1]
            record = Record(prvr.__version__, self._answers.stamp, port, self._token)
            content = json.dumps(record._asdict()).encode()
            self._file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._file, lambda file: file.write(content), mode=0o600)
        except OSError as error:
            logger.info("prvr search cannot use this server (%s)", error)

    def close(self) -> None:
        """Listens no more, and removes the file unless another server has replaced it."""
        with suppress(OSError, ValueError, TypeError):
            if read_record(self._file).token == self._token:
                self._file.unlink()
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= _CONNECTIONS:
                await self._converse(reader, writer)
        except (OSError, TimeoutError, ValueError):  # the client is gone, too slow, or says too much
            writer.transport.abort()
        finally:
            self._open -= 1
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(2 * GREETING_SECONDS):
            other = (await reader.readline()).rstrip()
            own = secrets.token_hex(16).encode()
            writer.write(own + b" " + proof(self._token, "server", other, own) + b"\n")
            proved, _, request = (await reader.readline()).rstrip(b"\n").partition(b" ")
        if not hmac.compare_digest(proved, proof(self._token, "client", other, own, request)):
            return
        reply = await self._answer(request)
        async with asyncio.timeout(2 * GREETING_SECONDS):
            writer.write(json.dumps(reply).encode() + b"\n")
            await writer.drain()

    async def _answer(self, request: bytes) -> dict[str, str]:
        """The output of a search, or why the command has to make it itself."""
        try:
            return await self._service.run(partial(self._answers.answer, json.loads(request)))
        except HTTPException as error:  # it is busy
            return {"problem": str(error.detail)}
        except PrvrError as error:  # the command itself will say so
            return {"problem": str(error)}
        except Exception as error:
            logger.debug("a request of prvr search failed", exc_info=True)
            return {"problem": f"{type(error).__name__}: {error}"}
