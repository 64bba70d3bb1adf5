{{/* The groups of rules: files/alerts.yaml with what the values change. */}}
{{- define "hello-operator.alerts" -}}
groups:
  - name: hello-operator
    rules:
      {{- range $alert := .Files.Get "files/alerts.yaml" | fromYamlArray }}
      {{- if not (has $alert.alert $.Values.alerts.disabled) }}
      {{- $changes := get $.Values.alerts.overrides $alert.alert | default dict }}
      {{- if and (hasKey $changes "threshold") (not (hasKey $alert "threshold")) }}
      {{- fail (printf "alerts.overrides.%s.threshold: this alert has no threshold" $alert.alert) }}
      {{- end }}
      {{- $alert = merge (deepCopy $changes) $alert }}
      {{- $board := ternary "hello-operator?" "hello-cluster?var-namespace={{ $labels.namespace }}&var-cluster={{ $labels.cluster }}" (hasPrefix "HelloOperator" $alert.alert) }}
      - alert: {{ $alert.alert }}
        expr: {{ $alert.expr | replace "$threshold" (toString $alert.threshold) | quote }}
        for: {{ $alert.for }}
        labels:
          severity: {{ $alert.severity }}
        annotations:
          summary: {{ $alert.summary | quote }}
          description: {{ $alert.description | quote }}
          runbook_url: {{ printf "%s/%s.md" $.Values.alerts.runbooks $alert.alert | quote }}
          dashboard: {{ printf "%s/d/%s" $.Values.alerts.grafana $board | trimSuffix "?" | quote }}
      {{- end }}
      {{- end }}
{{- end }}
