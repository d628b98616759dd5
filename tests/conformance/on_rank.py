"""All cases on one rank, whoever has started it."""

from __future__ import annotations

import time

import ringcore

from conformance.adapters import LACKS, load
from conformance.cases import CASES
from conformance.checks import Checks


def run_cases(adapter_name: str) -> dict:
    """What came out of each case, and which transports there are."""
    ringcore.init()
    adapter = load(adapter_name)
    reports = {"transports": ringcore.job.state.context().runtime.transports()}
    for name, case in CASES.items():
        if name in LACKS.get(adapter_name, ()):
            continue
        checks = Checks()
        begin = time.monotonic()
        case(adapter, checks)
        reports[name] = {**checks.report(), "seconds": time.monotonic() - begin}
    return reports


def check(reports: list[dict], adapter_name: str, transport: str) -> None:
    """Every rank has the right results over this transport, and all have the same bits."""
    for rank, report in enumerate(reports):
        assert report.pop("transports") == ["self" if peer == rank else transport for peer in range(len(reports))]
        assert set(report) == set(CASES) - set(LACKS.get(adapter_name, ()))
        for name, outcome in report.items():
            assert outcome["count"] > 0, name
            assert not outcome["failures"], f"{name}, rank {rank}: {outcome['failures']}"
    for name in reports[0]:
        assert len({report[name]["digest"] for report in reports}) == 1, name
