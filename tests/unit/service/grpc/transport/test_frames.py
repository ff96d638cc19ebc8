"""Frames as written, parsed by hyperframe; settings as read."""

from __future__ import annotations

import pytest
from hyperframe.frame import Frame, GoAwayFrame, RstStreamFrame, SettingsFrame, WindowUpdateFrame

from crestgate.service.grpc.transport import frames
from crestgate.service.grpc.transport.frames import Http2ConnectionError


def parsed(data: bytes) -> Frame:
    found, length = Frame.parse_frame_header(memoryview(data[:9]))
    assert length == len(data) - 9
    found.parse_body(memoryview(data[9:]))
    return found


def test_frames_are_parsed_by_hyperframe() -> None:
    reset = parsed(frames.rst_stream(7, frames.CANCEL))
    assert isinstance(reset, RstStreamFrame)
    assert (reset.stream_id, reset.error_code) == (7, 8)
    update = parsed(frames.window_update(2**31 - 1, 2**31 - 1))
    assert isinstance(update, WindowUpdateFrame)
    assert (update.stream_id, update.window_increment) == (2**31 - 1, 2**31 - 1)
    goaway = parsed(frames.goaway(9, frames.ENHANCE_YOUR_CALM, "why"))
    assert isinstance(goaway, GoAwayFrame)
    assert (goaway.last_stream_id, goaway.error_code, goaway.additional_data) == (9, 11, b"why")
    settings = parsed(frames.settings({frames.MAX_CONCURRENT_STREAMS: 5, frames.INITIAL_WINDOW_SIZE: 2**31 - 1}))
    assert isinstance(settings, SettingsFrame)
    assert settings.settings == {3: 5, 4: 2**31 - 1}


def test_settings_keep_their_order() -> None:
    payload = SettingsFrame(0, {4: 1, 5: 16_384, 99: 7}).serialize()[9:]
    assert frames.read_settings(payload) == [(4, 1), (5, 16_384), (99, 7)]


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b"12345", frames.FRAME_SIZE_ERROR),
        (b"\0\x02\0\0\0\x02", frames.PROTOCOL_ERROR),
        (b"\0\x04\x80\0\0\0", frames.FLOW_CONTROL_ERROR),
        (b"\0\x05\0\0\x3f\xff", frames.PROTOCOL_ERROR),
        (b"\0\x05\x01\0\0\0", frames.PROTOCOL_ERROR),
    ],
)
def test_invalid_settings_are_errors(payload: bytes, code: int) -> None:
    with pytest.raises(Http2ConnectionError) as broken:
        frames.read_settings(payload)
    assert broken.value.code == code
