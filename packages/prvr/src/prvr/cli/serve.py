"""`prvr serve`: the search page and an HTTP API for an index."""

import os
import sys
from argparse import Namespace

from prvr.cli.options import Parser
from prvr.cli.where import add_place, opened_index
from prvr.errors import require


def register(prvr: Parser) -> None:
    """Adds the command."""
    parser = prvr.command(
        "serve",
        run,
        "Serve the search page and an HTTP API for films",
        "FOLDER [--encoder NAME] [--host HOST] [--port PORT] [--token-file FILE] [OPTIONS]",
        "Serve the search page of a folder of films, or of an index, where results can be watched, and an HTTP API, "
        "whose schema is at /openapi.json, until Ctrl-C. A folder is brought up to date first. Only this machine can "
        "reach it, unless --host says otherwise; other machines then need a token, which is read from a file or from "
        "the environment variable PRVR_TOKEN.",
    )
    add_place(parser)
    parser.option("--host", default="127.0.0.1", help="the address to listen on; 0.0.0.0 is all of this machine")
    parser.option("--port", default=8000, help="the port to listen on; 0 takes any that is free")
    parser.add_argument(
        "--allow-host",
        metavar="NAME",
        action="append",
        default=[],
        help="a name by which clients call this server; repeat it for more",
    )
    parser.add_argument("--token-file", metavar="FILE", help="a file with the token that clients must send")
    parser.add_argument("--without-token", action="store_true", help="serve other machines without a token")
    parser.option("--rate", default=40.0, help="requests per second for each client; 0 is no limit")
    parser.option(
        "--client-connections", metavar="N", default=64, help="open connections for each client; 0 is no limit"
    )


def run(args: Namespace) -> None:
    """Serves until Ctrl-C."""
    for module in ("fastapi", "uvicorn", "prometheus_client", "cachetools"):
        require(module, "serve", "prvr serve")
    from prvr.serve import ServeLimits, ServeSettings, check_bind, read_token, serve

    token = read_token(args.token_file)
    check_bind(args.host, token, args.without_token)
    limits = ServeLimits(rate=args.rate, client_connections=args.client_connections)
    settings = ServeSettings(tuple(args.allow_host), token, limits=limits)
    note = "with a token" if token else "without a token: anyone who reaches it can search and watch"
    with opened_index(args) as index:
        ended = serve(
            index,
            args.host,
            args.port,
            settings=settings,
            without_token=args.without_token,
            started=lambda address: print(f"{address}  ({note}; Ctrl-C to stop)", flush=True),
        )
    if not ended:  # a thread still computes what no client waits for; the interpreter must not wait for it
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
