"""The OpenAPI description: complete, true, and no request that follows it ends in a 5xx."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode

from bm25v import Gallery
from tests.conftest import make_image
from tests.http_server import Client, serving

EXAMPLES = 12  # for each route


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of a gallery of six images."""
    folder = tmp_path_factory.mktemp("schema")
    for seed in range(6):
        make_image(seed).save(folder / f"{seed}.png")
    with Gallery.create(folder / "gallery", vocabulary="toy") as gallery:
        gallery.add([folder / f"{seed}.png" for seed in range(6)])
        with serving(gallery, folder / "cache", writable=True) as client:
            yield client


@pytest.fixture(scope="module")
def description(client: Client) -> Any:
    return client.get("/v1/openapi.json").json()


def test_every_route_and_option_is_described(description: Any) -> None:
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            assert operation["description"].endswith("."), (method, path)
            assert operation["responses"].keys() & {"200", "201"}, (method, path)
    body = description["paths"]["/v1/search"]["post"]["requestBody"]["content"]
    options = body["application/json"]["schema"]["properties"]
    assert all("description" in option or "$ref" in option for option in options.values())
    assert body["application/json"]["schema"]["examples"]
    assert "multipart/form-data" in body


def test_the_body_of_a_search_has_every_option_of_a_query(description: Any) -> None:
    from bm25v.search.query import QueryOptions

    body = description["paths"]["/v1/search"]["post"]["requestBody"]["content"]
    options = set(body["application/json"]["schema"]["properties"])
    assert options == {*QueryOptions.__annotations__, "images", "words"}


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_requests_get_answers_that_follow_the_description(
    client: Client, description: Any, mode: GenerationMode
) -> None:
    """Whether they follow it themselves or not."""
    load_all_checks()
    schema = schemathesis.openapi.from_dict(description)
    schema.config.generation.update(allow_extra_parameters=False)  # the server ignores these
    # What follows the description may still mean nothing: an empty query, bytes that are no image.
    accepted = schema.config.checks.positive_data_acceptance
    accepted.expected_statuses = [*accepted.expected_statuses, "400", "422"]
    n_operations = 0
    for result in schema.get_all_operations():
        assert isinstance(result, Ok)
        operation = result.ok()

        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        )
        def check(case: Any) -> None:
            for parameters in (case.path_parameters, case.query):
                for name in {"id", "image", "hit"} & set(parameters or ()):
                    if case.method != "DELETE" and mode == GenerationMode.POSITIVE:
                        parameters[name] = client.ids()[0]  # others are unknown
            response = case.call(base_url=str(client.base_url).rstrip("/"))
            assert response.status_code < 500, response.text
            case.validate_response(response, checks=CHECKS.get_all())

        with suppress(Unsatisfiable):  # a request that has nothing to be wrong
            check()
            n_operations += 1
    assert n_operations >= 17
