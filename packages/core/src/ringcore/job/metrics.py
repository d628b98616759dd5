"""A page of numbers for Prometheus: each rank serves its own, and looks at itself only when it is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ringcore._errors import InvalidArgument
from ringcore.job.state import Context
from ringcore.job.statistics import statistics_of

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_LABELS = ("training", "rank", "host")  # Prometheus has a "job" of its own


class Collector:
    """What Prometheus reads of a rank.

    Args:
        context: Of the job.
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    def collect(self) -> Iterator[Metric]:
        """The numbers of this moment."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        found = statistics_of(self._context)
        labels = [self._context.job, str(found["rank"]), found["host"]]

        def family(kind: Callable[..., Any], name: str, text: str, label: str, values: dict[str, float]) -> Any:
            made = kind(f"ringcore_{name}", text, labels=[*_LABELS, *([label] if label else [])])
            for key, value in values.items():
                made.add_metric([*labels, *([key] if label else [])], value)
            return made

        waits = found["waits"]
        longest = max((wait["seconds"] for wait in waits), default=0.0)
        missing = {str(rank): 1.0 for wait in waits for rank in wait["missing"]}
        count, gauge = CounterMetricFamily, GaugeMetricFamily
        yield family(count, "steps", "Steps of optimizers", "", {"": found["steps"]})
        yield family(count, "operations", "Operations that have ended", "", {"": found["operations"]})
        yield family(count, "sent_bytes", "Bytes that plans have sent", "transport", found["bytes_sent"])
        yield family(count, "received_bytes", "Bytes that plans have received", "transport", found["bytes_received"])
        yield family(gauge, "resident_memory_bytes", "Memory of the process", "", {"": found["memory_bytes"]})
        yield family(gauge, "waiting_seconds", "How long the longest wait of this moment is", "", {"": longest})
        yield family(gauge, "waits_for", "1 for each rank that this one waits for", "late_rank", missing)


class MetricsPage:
    """The page, served until `stop`.

    Args:
        context: Of the job, whose settings say where.

    Raises:
        InvalidArgument: prometheus_client is not installed, or the port is taken.
    """

    def __init__(self, context: Context) -> None:
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError:
            raise InvalidArgument(
                "metrics_port is set, but prometheus_client is not installed. Remedy: pip install 'ringcore[metrics]'"
            ) from None
        registry = CollectorRegistry()
        registry.register(Collector(context))
        settings = context.settings
        port = settings.metrics_port + context.local_rank
        try:
            self._server, self._thread = start_http_server(port, settings.metrics_address, registry)
        except (OSError, OverflowError) as error:
            raise InvalidArgument(
                f"rank {context.rank} cannot serve its metrics at {settings.metrics_address}:{port}: {error}. Remedy: "
                "choose another metrics_port; each rank of a host takes the next one"
            ) from None
        context.runtime.add_service_thread(self._thread.native_id or 0)

    def stop(self) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def forget(self) -> None:
        """In a forked child: close the copy of the listener."""
        self._server.server_close()
