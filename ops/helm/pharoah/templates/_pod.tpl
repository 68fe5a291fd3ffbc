{{- define "pharoah.name" -}}
{{ .Release.Name }}-{{ .Values.role }}
{{- end }}

{{- define "pharoah.selector" -}}
app.kubernetes.io/name: pharoah
app.kubernetes.io/component: {{ .Values.role }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "pharoah.tester" -}}
app.kubernetes.io/component: {{ .Values.role }}-test
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "pharoah.labels" -}}
{{ include "pharoah.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "pharoah.follows" -}}
{{- if and (eq .Values.role "provider") .Values.follow }}yes{{ end }}
{{- end }}

{{- define "pharoah.labelsNodes" -}}
{{- if and (include "pharoah.follows" .) .Values.nodes.label }}yes{{ end }}
{{- end }}

{{- define "pharoah.taintsDevices" -}}
{{- if and (include "pharoah.follows" .) .Values.nodes.taint }}yes{{ end }}
{{- end }}

{{- define "pharoah.admits" -}}
{{- if and (eq .Values.role "tenant") .Values.admission.enabled }}yes{{ end }}
{{- end }}

{{/* Kubernetes' name of the service account, as requests have it. */}}
{{- define "pharoah.username" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "pharoah.name" . }}
{{- end }}

{{- define "pharoah.monitored" -}}
{{- if and (eq .Values.role "provider") .Values.monitoring.enabled }}yes{{ end }}
{{- end }}

{{/* What every pod has. No variables for the Services of its namespace: PHAROAH_TRUSTEE_PORT would be a setting. */}}
{{- define "pharoah.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 1000
  runAsGroup: 1000
  fsGroup: 1000
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{/* What every container has: no privileges, a home, and the settings. */}}
{{- define "pharoah.container" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: ["ALL"]
env:
  - name: FLWR_TELEMETRY_ENABLED
    value: "0"
{{- range $name, $value := .Values.settings }}
  - name: {{ $name }}
    value: {{ $value | quote }}
{{- end }}
{{- if include "pharoah.monitored" . }}
  - name: PHAROAH_LISTEN_METRICS_HOST
    value: 0.0.0.0
{{- end }}
{{- if include "pharoah.labelsNodes" . }}
  - name: PHAROAH_KUBERNETES_LABEL_NODES
    value: "true"
{{- end }}
{{- if include "pharoah.taintsDevices" . }}
  - name: PHAROAH_KUBERNETES_TAINT_DRIVER
    value: {{ .Values.nodes.taint | quote }}
{{- end }}
{{- if .Values.databaseSecret }}
  - name: PHAROAH_DATABASE
    valueFrom:
      secretKeyRef:
        name: {{ .Values.databaseSecret }}
        key: url
{{- end }}
{{- end }}
