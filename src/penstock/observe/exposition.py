"""The text of all metrics for Prometheus: samples by their declared families, and metrics of the process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from penstock.errors import ConfigError
from penstock.observe.metrics import FAMILIES, Family, MetricType, Sample

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric

CollectSamples = Callable[[], Iterable[Sample]]


def exposition(collect: CollectSamples, accept: str) -> tuple[bytes, str]:
    """The metrics in the format that an Accept header prefers (text, or OpenMetrics), and its media type. `collect` is
    called once. Raises ConfigError if the extra `console` is not installed."""
    try:
        from prometheus_client.exposition import choose_encoder
    except ModuleNotFoundError as error:
        raise ConfigError(f"metrics need the package {error.name}: install `penstock[console]`") from error
    encode, media_type = choose_encoder(accept)
    return encode(_registry(collect)), media_type


def _registry(collect: CollectSamples) -> CollectorRegistry:
    from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

    registry = CollectorRegistry()
    registry.register(_Collector(collect))
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    return registry


class _Collector:
    """Makes the families of the table from samples. A family without a sample is left out."""

    def __init__(self, collect: CollectSamples) -> None:
        self._collect = collect

    def describe(self) -> Iterator[Metric]:
        """The families without values: the registry checks names without collecting."""
        return map(_metric, FAMILIES)

    def collect(self) -> Iterator[Metric]:
        by_family: dict[str, list[Sample]] = {family.name: [] for family in FAMILIES}
        for sample in self._collect():
            by_family[sample.family.name].append(sample)
        for family in FAMILIES:
            if samples := by_family[family.name]:
                metric = _metric(family)
                for sample in samples:
                    labels = dict(zip(family.labels, sample.labels, strict=True))
                    metric.add_sample(family.name, labels, sample.value)
                yield metric


def _metric(family: Family) -> Metric:
    from prometheus_client import Metric

    suffix = {MetricType.COUNTER: "_total", MetricType.INFO: "_info", MetricType.GAUGE: ""}[family.type]
    return Metric(family.name.removesuffix(suffix), family.help, family.type.value)
