"""`prvr serve`: a page and an API to search an index."""

import os
import sys
from collections.abc import Callable
from typing import Any

from jsonargparse import Namespace

from prvr.cli.console import device_of, leaf, stdout
from prvr.errors import require

NAME = "serve"


def register(subcommands: Any) -> dict[tuple[str, ...], Callable[[Namespace], None]]:
    """Adds the command."""
    parser = leaf(
        "prvr serve INDEX [--host 127.0.0.1] [--port 8000] [--token-file FILE]",
        "Serve a page to search an index and watch what is found, and an API (its schema is at /openapi.json), until "
        "Ctrl-C. Reachable from this machine alone, unless --host says otherwise; then a token is needed, from a file "
        "or from the environment as PRVR_TOKEN.",
    )
    parser.add_argument("index", metavar="INDEX", help="folder of prvr index")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at; 0.0.0.0: all of this machine")
    parser.add_argument("--port", type=int, default=8000, help="0: any that is free")
    parser.add_argument(
        "--allow-host", metavar="NAME", action="append", default=[], help="a name by which clients call this server"
    )
    parser.add_argument("--token-file", metavar="FILE", help="holds the token that clients must send")
    parser.add_argument("--without-token", action="store_true", help="listen to other machines without a token")
    parser.add_argument("--rate", type=float, default=40.0, help="requests per second of one client; 0: no limit")
    parser.add_argument(
        "--client-connections", type=int, default=64, help="open connections of one client; 0: no limit of its own"
    )
    parser.add_argument(
        "--backend", default="auto", metavar="NAME", help="looks for candidates: auto, exact, faiss or milvus[:ADDRESS]"
    )
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"], help="of the model")
    subcommands.add_subcommand(NAME, parser, help="a page to search an index, on this machine")
    return {(NAME,): run}


def run(args: Namespace) -> None:
    """Carries it out."""
    for module in ("fastapi", "uvicorn"):
        require(module, "serve", "prvr serve")
    from prvr.serve import ServeLimits, ServeSettings, check_bind, read_token, serve

    token = read_token(args.token_file)
    check_bind(args.host, token, args.without_token)
    limits = ServeLimits(rate=args.rate, client_connections=args.client_connections)
    settings = ServeSettings(tuple(args.allow_host), token, limits=limits)
    note = "with a token" if token else "without a token: whoever reaches it can search and watch"
    ended = serve(
        args.index,
        args.host,
        args.port,
        settings=settings,
        without_token=args.without_token,
        device=device_of(args.device),
        backend=args.backend,
        started=lambda address: stdout().print(
            f"{address}  ({note}; Ctrl-C ends it)", markup=False, soft_wrap=True, highlight=False
        ),
    )
    if not ended:  # a thread computes what nobody waits for: Python would wait for it, or break off in the middle of it
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
