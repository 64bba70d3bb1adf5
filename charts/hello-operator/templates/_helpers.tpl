{{/*
The name of everything. It does not depend on the release: two operators in one cluster would both act on every object,
and with fixed names of cluster-wide objects helm refuses the second installation.
*/}}
{{- define "hello-operator.name" -}}
hello-operator
{{- end }}

{{/* Labels by which Deployment, Service and PodDisruptionBudget find the Pods. Never changed: a selector is immutable. */}}
{{- define "hello-operator.selector" -}}
app.kubernetes.io/name: hello-operator
app.kubernetes.io/component: operator
{{- end }}

{{/* Labels of every object. */}}
{{- define "hello-operator.labels" -}}
{{ include "hello-operator.selector" . }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* The image of the operator and, as it is the same, of the agents. */}}
{{- define "hello-operator.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
