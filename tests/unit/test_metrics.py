"""The service of metrics answers, whatever tenants call their containers, and does not end nvcd."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.core import GaugeMetricFamily, Metric

from nvc.daemon.metrics import Exporter

QUESTION = b"GET /metrics HTTP/1.1\r\n\r\n"


class Said:
    """A daemon of which nothing but its log is asked."""

    def __init__(self) -> None:
        self.slices = self
        self.said: list[str] = []

    def say(self, problem: str) -> None:
        self.said.append(problem)


def answer(monkeypatch: pytest.MonkeyPatch, metrics: Any) -> tuple[str, list[str]]:
    """The answer, and what was logged."""
    daemon = Said()
    monkeypatch.setattr(Exporter, "_all", metrics)
    exporter = Exporter(daemon)  # type: ignore[arg-type]
    return exporter.answer(QUESTION, 1).decode(), daemon.said


def test_a_label_that_cannot_be_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    def metrics(_: Exporter) -> Iterator[Metric]:
        found = GaugeMetricFamily("held", "Bytes", labels=("container", "slice"))
        found.add_metric(("a\udc9b\x1bb", "é"), 1)
        yield found

    text, said = answer(monkeypatch, metrics)
    assert text.startswith("HTTP/1.1 200 OK") and 'held{container="a??b",slice="é"} 1.0' in text and not said


def test_what_cannot_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def metrics(_: Exporter) -> Iterator[Metric]:
        raise ValueError("no such figure")
        yield

    text, said = answer(monkeypatch, metrics)
    assert text.startswith("HTTP/1.1 500 ") and said == ["no metrics: no such figure"]
