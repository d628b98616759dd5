"""The page for Prometheus, and the board for Grafana that draws what is on it."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import ringcore
from support import ranks
from support.rank import caught, mark

ROOT = Path(__file__).parents[2]


def free_ports() -> int:
    """Two neighbours."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            try:
                second.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return port


def serves(port: int) -> str:
    import urllib.request

    ringcore.init()
    ringcore.allreduce(np.ones(1 << 20))
    with urllib.request.urlopen(f"http://127.0.0.1:{port + ringcore.rank()}/metrics", timeout=30) as page:
        text = page.read().decode()
    ringcore.allreduce(np.ones(1))  # nobody leaves before all have read
    ringcore.shutdown()
    return text


def test_each_rank_serves_its_numbers_and_the_board_knows_them(tmp_path: Path) -> None:
    port = free_ports()
    pages = ranks.run(serves, 2, tmp_path, port, env={"RINGCORE_METRICS_PORT": str(port)})
    for rank, page in enumerate(pages):
        assert re.search(rf'^ringcore_operations_total{{.*rank="{rank}".*}} 1\.0$', page, re.MULTILINE), page
        sent = re.findall(r'^ringcore_(?:sent|received)_bytes_total{.*transport="shm"} (\S+)$', page, re.MULTILINE)
        assert sum(map(float, sent)) >= 8 << 20
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30)
    board = (ROOT / "deploy" / "grafana" / "ringcore.json").read_text()
    drawn = {word for panel in json.loads(board)["panels"] for word in re.findall(r"ringcore_\w+", json.dumps(panel))}
    assert len(drawn) == 7
    assert drawn == set(re.findall(r"^# HELP (\S+)", pages[0], re.MULTILINE))


def is_refused(port: int) -> list:
    found = caught(ringcore.init)
    started = ringcore.is_initialized()
    os.environ["RINGCORE_METRICS_PORT"] = "0"
    mark("refused")
    return [found, started]


def has_no_library() -> dict:
    sys.modules["prometheus_client"] = None  # as where it is not installed
    return caught(ringcore.init)


def test_what_is_in_the_way_of_the_page_is_said(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = int(taken.getsockname()[1])
        ((found, started),) = ranks.run(is_refused, 1, tmp_path, port, env={"RINGCORE_METRICS_PORT": str(port)})
    assert found["type"] == "InvalidArgument" and not started
    assert f"cannot serve its metrics at 127.0.0.1:{port}" in found["message"] and "Remedy: " in found["message"]
    (found,) = ranks.run(has_no_library, 1, tmp_path, env={"RINGCORE_METRICS_PORT": "9400"})
    assert "pip install 'ringcore[metrics]'" in found["message"]
