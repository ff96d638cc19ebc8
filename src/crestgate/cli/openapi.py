"""`crestgate openapi`: the description of the HTTP API, from which clients are generated."""

from __future__ import annotations

from crestgate.cli.output import print_json
from crestgate.cli.serve import check_packages

__all__ = ["openapi"]


def openapi() -> None:
    """Print the OpenAPI document of the service's HTTP API.

    It is what a service of this version has at /openapi.json, and needs neither a service nor settings.
    """
    check_packages()
    from crestgate.service.admin.api import openapi_document

    print_json(openapi_document())
