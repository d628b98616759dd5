"""Buckets of gradients on a GPU: which streams wait for which, without a GPU."""

from __future__ import annotations

import pytest
import torch
from ringcore_torch.buckets import PackedBucket


class Stream:
    """Notes whom it waits for."""

    def __init__(self) -> None:
        self.waits: list[Stream] = []

    def wait_stream(self, other: Stream) -> None:
        self.waits.append(other)


def test_a_bucket_is_submitted_behind_all_streams_in_which_its_gradients_came(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = PackedBucket("bucket", [torch.ones(1)], ["weight"])
    first, second = Stream(), Stream()
    for stream in (first, second, first, second):
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _, stream=stream: stream)
        bucket.note_stream()
    bucket.join_streams()
    assert second.waits == [first] and first.waits == []
    bucket.join_streams()
    assert second.waits == [first], "streams of a bucket that was submitted are waited for again"
