"""Writes the rules of deploy/prometheus as PrometheusRule, for the Prometheus Operator.

    python -m tools.prometheus_rule

The operator loads the same groups under another heading, so the manifest is generated: alerts are changed in one place.
tests/unit/deploy/test_kubernetes_schemas.py fails while the two differ.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("recording", "alerts")
TARGET = ROOT / "deploy" / "kubernetes" / "monitoring" / "prometheusrule.yaml"
NOTE = "# Generated from deploy/prometheus by `python -m tools.prometheus_rule`: change the rules there.\n"
HEADING = """\
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: crestgate-{name}
  labels:
    app.kubernetes.io/name: crestgate
spec:
"""


def manifest() -> str:
    """One document for each file, without its comments at the top, which are about files."""
    return NOTE + "---\n".join(HEADING.format(name=name) + _indented(name) for name in SOURCES)


def _indented(name: str) -> str:
    text = (ROOT / "deploy" / "prometheus" / f"{name}.yaml").read_text()
    groups = text[text.index("groups:\n") :]
    return "".join(f"  {line}" if line.strip() else line for line in groups.splitlines(keepends=True))


if __name__ == "__main__":
    TARGET.write_text(manifest())
