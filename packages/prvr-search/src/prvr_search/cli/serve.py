"""`prvr serve`: the search page and an HTTP API for a folder of videos or an index."""

import os
from typing import Annotated

from cyclopts import Parameter, validators

from prvr.cli.options import Whole, app
from prvr.errors import require
from prvr_search.cli.clip import VIDEOS
from prvr_search.cli.libraries import Folder, SearchOptions, opened_library


@app.command(name="serve", group=VIDEOS)
def run(
    folder: Folder,
    /,
    *,
    library: SearchOptions = SearchOptions(),
    host: str = "127.0.0.1",
    port: Whole = 8000,
    allow_host: Annotated[list[str], Parameter(metavar="NAME")] = [],
    root_path: Annotated[str, Parameter(metavar="PATH")] = "",
    token_file: Annotated[str | None, Parameter(metavar="FILE")] = None,
    without_token: bool = False,
    client_connections: Annotated[Whole, Parameter(validator=validators.Number(gte=0))] = 64,
    rescan: Annotated[float, Parameter(validator=validators.Number(gt=0), metavar="SECONDS")] = 10.0,
) -> None:
    """Serve the search page and an HTTP API for videos.

    Serve the search page of a folder of videos, where results can be played, and an HTTP API, whose schema is at
    /openapi.json. The server starts at once and encodes new videos in the background; encoded videos can be searched.
    Only this machine can connect, unless --host is set. Other machines need a token, which is read from a file or from
    the environment variable PRVR_TOKEN. Stop it with Ctrl-C.

    Args:
        host: the address to listen on; 0.0.0.0 means all network interfaces
        port: the port to listen on; 0 means any free port
        allow_host: a host name by which clients reach this server; can be repeated
        root_path: the path below which a proxy serves the page, for example /videos (default: the root of the host)
        token_file: a file with the token that clients must send
        without_token: serve other machines without a token
        client_connections: maximum number of open connections per client; 0 means no limit
        rescan: minimum time between two looks for new videos; the server rests at least nine times as long as one takes
    """
    for module in ("fastapi", "uvicorn", "prometheus_client", "cachetools"):
        require(module, "prvr-search[serve]", "prvr serve")
    from prvr_search.serve import ServeLimits, ServeSettings, check_bind, read_token, serve
    from prvr_search.serve.settings import EVERYWHERE, read_host, read_root

    token = read_token(token_file)
    check_bind(host, token, without_token)
    settings = ServeSettings(
        tuple(map(read_host, allow_host)),
        token,
        rescan_seconds=rescan,
        root_path=read_root(root_path),
        limits=ServeLimits(client_connections=client_connections),
    )
    note = "with a token" if token else "without a token: anyone who can connect can search and watch"
    if host.strip("[]") in EVERYWHERE:
        names = f"as {', '.join(allow_host)}" if allow_host else "with --allow-host NAME"
        note = f"on all interfaces, for other machines {names}; {note}"
    with opened_library(folder, library, update=False, prepare=not library.no_update) as opened:
        ended = serve(
            opened,
            host,
            port,
            settings=settings,
            update=not library.no_update,
            without_token=without_token,
            started=lambda address: print(f"{address}  ({note}; Ctrl-C to stop)", flush=True),
        )
    if not ended:  # a search that no client waits for, or an encoder, still runs in a thread; do not wait for it
        os._exit(0)
