"""Whatever the OpenAPI schema allows, and much that it does not: no request makes the server fail."""

import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("av")
from hypothesis import given, settings
from serving import HOST, app_of, keys_of, make_library, wait_for
from starlette.testclient import TestClient

EXAMPLES = int(os.environ.get("PRVR_SCHEMA_EXAMPLES", "15"))
"""For each address and method; a longer run sets more."""
OPERATIONS = 16


def test_what_the_schema_says_is_so(tmp_path: Path) -> None:
    schemathesis = pytest.importorskip("schemathesis")
    from schemathesis.specs.openapi.checks import positive_data_acceptance  # a query of no words is refused, with 400

    app = app_of(make_library(tmp_path, "a.mp4"))
    with TestClient(app, base_url=HOST) as client:
        wait_for(lambda: client.get("/ready").status_code == 200)
        key = keys_of(client)["a.mp4"]
        schema = schemathesis.openapi.from_asgi("/openapi.json", app, headers={"Host": "127.0.0.1"})
        tested = 0
        for found in schema.get_all_operations():
            operation = found.ok()
            tested += 1

            @settings(max_examples=EXAMPLES, deadline=None)
            @given(case=operation.as_strategy())
            def check(case: Any) -> None:
                if "key" in case.path_parameters:
                    case.path_parameters["key"] = key  # or no request would reach a video
                case.call_and_validate(headers={"Host": "127.0.0.1"}, excluded_checks=[positive_data_acceptance])

            check()
        assert tested == OPERATIONS
        metrics = client.get("/metrics").text
        assert 'status="5' not in metrics.replace('route="/ready",status="503"', "")  # before it was ready
        assert 'prvr_requests_total{route="/api/videos/{key}/preview",status="200"}' in metrics
