"""h2spec, the conformance suite for HTTP/2 servers, against the gRPC listener. Run by `make h2spec`, which builds it.

It sends GET requests, because it is made for web servers. The listener responds to each with 405 and no body as soon
as it has the headers, so cases that need a body, or frames after the headers, see that response instead. Our own tests
cover these with gRPC calls. The expected differences are listed exactly: a new or a missing one fails the test.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

from integration.service.service_process import Service

CASES = 145
NO_BODY = {
    ("http2/6.5.3", "Sends multiple values of SETTINGS_INITIAL_WINDOW_SIZE"),
    ("http2/6.9.1", "Sends SETTINGS frame to set the initial window size to 1 and sends HEADERS frame"),
    ("http2/6.9.2", "Changes SETTINGS_INITIAL_WINDOW_SIZE after sending HEADERS frame"),
    ("http2/6.9.2", "Sends a SETTINGS frame for window size to be negative"),
}
"""Skipped by h2spec: they need a response with a body."""
RESPONDED_EARLY = {
    ("generic/2", "Sends a WINDOW_UPDATE frame on half-closed (remote) stream"),
    ("generic/2", "Sends a PRIORITY frame on half-closed (remote) stream"),
    (
        "http2/5.1.2",
        "Sends HEADERS frames that causes their advertised concurrent stream limit to be exceeded",
    ),
    (
        "http2/6.9.1",
        "Sends multiple WINDOW_UPDATE frames increasing the flow control window to above 2^31-1 on a stream",
    ),
    ("http2/8.1", "Sends a second HEADERS frame without the END_STREAM flag"),
    ("http2/8.1.2.1", "Sends a HEADERS frame that contains a pseudo-header field as trailers"),
    (
        "http2/8.1.2.6",
        'Sends a HEADERS frame with the "content-length" header field which does not equal the DATA frame payload '
        "length",
    ),
    (
        "http2/8.1.2.6",
        'Sends a HEADERS frame with the "content-length" header field which does not equal the sum of the multiple '
        "DATA frames payload length",
    ),
}
"""See above: 405 has been sent before the case begins."""
BY_CHOICE = {
    (
        "http2/3.5",
        "Sends invalid connection preface",
    ),  # HTTP/1 gets a plain text response, then the connection is closed
    ("http2/5.3.1", "Sends HEADERS frame that depend on itself"),  # priorities are ignored, as RFC 9113 allows
    ("http2/5.3.1", "Sends PRIORITY frame that depend on itself"),
}


def test_listener_conforms_to_http2(
    serve: Callable[..., Service], tmp_path: Path, report: Callable[[str], None]
) -> None:
    service = serve()
    host, _, port = service.rpc.rpartition(":")
    results = tmp_path / "results.xml"
    command = [os.environ["H2SPEC"], "-h", host, "-p", port, "-j", str(results)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert results.exists(), run.stdout + run.stderr
    cases = list(ET.parse(results).getroot().iter("testcase"))
    skipped = {name(case) for case in cases if case.find("skipped") is not None}
    failed = {name(case) for case in cases if case.find("error") is not None or case.find("failure") is not None}
    assert len(cases) == CASES
    assert skipped == NO_BODY
    assert failed == RESPONDED_EARLY | BY_CHOICE, run.stdout
    report(f"{len(cases) - len(skipped) - len(failed)} of {len(cases)} cases pass, the others differ as expected")


def name(case: ET.Element) -> tuple[str, str]:
    return case.attrib["package"], case.attrib["classname"]
