{{- define "nearfar.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 53 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 53 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "nearfar.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* Called with a list of the root and the component: server, gateway, prefill or decode. */}}
{{- define "nearfar.selector" -}}
app.kubernetes.io/name: {{ (index . 0).Chart.Name }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "nearfar.labels" -}}
{{ include "nearfar.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ printf "%s-%s" (index . 0).Chart.Name (index . 0).Chart.Version }}
{{- end }}

{{- define "nearfar.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: { type: RuntimeDefault }
{{- end }}

{{- define "nearfar.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end }}

{{/* Called with a dictionary of port, scheme and startupMinutes. */}}
{{- define "nearfar.probes" -}}
startupProbe:
  httpGet: { path: /health/startup, port: http, scheme: {{ .scheme }} }
  periodSeconds: 10
  failureThreshold: {{ mul .startupMinutes 6 }}
livenessProbe:
  httpGet: { path: /health/live, port: http, scheme: {{ .scheme }} }
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: { path: /health/ready, port: http, scheme: {{ .scheme }} }
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}

{{- define "nearfar.scheme" -}}
{{ ternary "https" "http" (ne .Values.tls.existingSecret "") }}
{{- end }}

{{/*
The options with the addresses of workers. Called with a list of the root, the option and the role. Names of this length
may be matched by a certificate for *.RELEASE-nearfar-ROLE.NAMESPACE.svc.
*/}}
{{- define "nearfar.workers" -}}
{{- $root := index . 0 -}}
{{- $role := index . 2 -}}
{{- $service := printf "%s-%s" (include "nearfar.name" $root) $role -}}
{{- range $number := until (int (ternary $root.Values.prefill.replicas $root.Values.replicas (eq $role "prefill"))) -}}
{{- if $number }}
{{ end }}- {{ printf "%s=%s://%s-%d.%s.%s.svc:8000" (index $ 1) (include "nearfar.scheme" $root) $service $number $service $root.Release.Namespace }}
{{- end }}
{{- end }}
