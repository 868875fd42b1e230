// Prometheus's own parser, for the expressions of dashboards and rules.
module nvc.test/promql

go 1.26.0

require github.com/prometheus/prometheus v0.305.0
