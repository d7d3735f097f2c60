"""With `tenant_header`, whose a request is comes from a header that a proxy sets, not from the request."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from triton_world import DEADLINE_S, MODEL, Triton, copy_of_the_shipped_repository, infer_request

from pagetide_server.launcher import Server

pytestmark = pytest.mark.server

HEADER = "x-tenant"
LONG = {"max_tokens": 4000, "ignore_eos": True}


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    place = tmp_path_factory.mktemp("header")
    copy = copy_of_the_shipped_repository(place / "repository")
    settings = copy / MODEL / "1" / "model.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"tenant_header": "X-Tenant"}))
    forward = f"--grpc-header-forward-pattern={HEADER}"
    with Server(copy, device="cpu", log_path=place / "server.log", arguments=[forward]) as server:
        server.wait_ready(MODEL)
        yield Triton(server)


def tenants(own: Triton) -> list[str]:
    """Those with requests now."""
    (told,) = own.start(None, stream=None, statistics=True).all()
    return [tenant["name"] for tenant in json.loads(told.text)["tenants"]]


def tenants_of_a_stream(own: Triton, **request: Any) -> list[str]:
    """The engine's tenants while a request with the header `acme` runs; it is cancelled then."""
    asked = iter([infer_request(sampling=LONG, **request)])
    call = own.stub.ModelStreamInfer(asked, timeout=DEADLINE_S, metadata=((HEADER, "acme"),))
    assert not next(call).error_message
    found = tenants(own)
    call.cancel()
    own.wait_until_idle()
    return found


def test_the_header_says_whose_a_stream_is(own: Triton) -> None:
    assert tenants_of_a_stream(own) == ["acme"]


def test_a_request_that_names_its_tenant_itself_is_refused(own: Triton) -> None:
    expected = "tenant is 'blue'; leave it out, as the header X-Tenant says it here"
    assert expected in own.error(sampling={"tenant": "blue"})


def test_a_parameter_of_the_headers_name_is_refused(own: Triton) -> None:
    asked = iter([infer_request(parameters={HEADER: "blue"})])
    (message,) = own.stub.ModelStreamInfer(asked, timeout=DEADLINE_S, metadata=((HEADER, "acme"),))
    assert message.error_message == "X-Tenant is given 2 times, for different tenants"
