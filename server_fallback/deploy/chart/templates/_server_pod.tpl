{{/*
The pod of `nearfar serve`. Called with a dictionary of root and role: server, or if prompts and answers are computed
apart, prefill, decode, or balancer, which has no models of its own.
*/}}
{{- define "nearfar.serverPod" -}}
{{- $role := .role -}}
{{- with .root -}}
{{- $name := include "nearfar.name" . -}}
{{- $tls := .Values.tls.existingSecret -}}
{{- $balances := eq $role "balancer" -}}
{{- $config := ternary .Values.prefill.balancer.config .Values.config $balances -}}
{{- $workerKey := ternary .Values.prefill.workerKey.secretName "" (has $role (list "balancer" "decode")) -}}
metadata:
  labels: {{- include "nearfar.labels" (list . (ternary "server" $role $balances)) | nindent 4 }}
  annotations:
    checksum/config: {{ $config | sha256sum }}
spec:
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
  securityContext: {{- include "nearfar.podSecurity" . | nindent 4 }}
  containers:
    - name: nearfar
      image: {{ include "nearfar.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args:
        - serve
        - --config=/etc/nearfar/{{ ternary "balancer" "nearfar" $balances }}.toml
        - --host=0.0.0.0
        - --port=8000
        {{- if .Values.keys.existingSecret }}
        - --api-keys=/etc/nearfar-keys/keys.toml
        {{- end }}
        {{- if $tls }}
        - --tls-cert=/etc/nearfar-tls/tls.crt
        - --tls-key=/etc/nearfar-tls/tls.key
        {{- with .Values.tls.authority }}
        - --tls-ca=/etc/nearfar-tls/{{ . }}
        {{- end }}
        {{- end }}
        {{- if eq $role "prefill" }}
        - --role=prefill
        {{- else if eq $role "decode" }}
        - --role=decode
        {{- else if $balances }}
        - --executor=upstream
        - --dialect=nearfar
        {{- include "nearfar.workers" (list . "--upstream" "decode") | nindent 8 }}
        {{- if $workerKey }}
        - --upstream-api-key-env=NEARFAR_WORKER_KEY
        {{- end }}
        {{- end }}
        {{- if has $role (list "balancer" "decode") }}
        {{- include "nearfar.workers" (list . "--prefill-from" "prefill") | nindent 8 }}
        {{- if $workerKey }}
        - --prefill-api-key-env=NEARFAR_WORKER_KEY
        {{- end }}
        {{- end }}
      {{- if or .Values.environment $workerKey }}
      env:
        {{- with .Values.environment }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        {{- if $workerKey }}
        - name: NEARFAR_WORKER_KEY
          valueFrom: { secretKeyRef: { name: {{ $workerKey }}, key: {{ .Values.prefill.workerKey.key }} } }
        {{- end }}
      {{- end }}
      ports:
        - { name: http, containerPort: 8000 }
      {{- include "nearfar.probes" (dict "scheme" (include "nearfar.scheme" . | upper) "startupMinutes" .Values.startupMinutes) | nindent 6 }}
      lifecycle:
        # Load balancers need some seconds to send requests elsewhere.
        preStop: { exec: { command: [sleep, "5"] } }
      {{- $own := dict "balancer" .Values.prefill.balancer.resources "prefill" .Values.prefill.resources }}
      resources: {{- toYaml (get $own $role | default .Values.resources) | nindent 8 }}
      securityContext: {{- include "nearfar.containerSecurity" . | nindent 8 }}
      volumeMounts:
        - { name: config, mountPath: /etc/nearfar, readOnly: true }
        - { name: cache, mountPath: /cache }
        - { name: tmp, mountPath: /tmp }
        {{- if .Values.keys.existingSecret }}
        - { name: keys, mountPath: /etc/nearfar-keys, readOnly: true }
        {{- end }}
        {{- if $tls }}
        - { name: tls, mountPath: /etc/nearfar-tls, readOnly: true }
        {{- end }}
  volumes:
    - name: config
      configMap: { name: {{ $name }} }
    {{- if or $balances (not .Values.cache.enabled) }}
    - name: cache
      emptyDir: {}
    {{- else if or .Values.cache.existingClaim (eq $role "server") }}
    - name: cache
      persistentVolumeClaim: { claimName: {{ .Values.cache.existingClaim | default $name }} }
    {{- end }}
    - name: tmp
      emptyDir: {}
    {{- with .Values.keys.existingSecret }}
    - name: keys
      secret: { secretName: {{ . }} }
    {{- end }}
    {{- with $tls }}
    - name: tls
      secret: { secretName: {{ . }} }
    {{- end }}
  {{- if not $balances }}
  {{- with .Values.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- end }}
{{- end }}
{{- end }}

{{/* What is stored in a volume for /cache. */}}
{{- define "nearfar.cacheClaim" -}}
accessModes: [ReadWriteOnce]
{{- with .Values.cache.storageClass }}
storageClassName: {{ . }}
{{- end }}
resources:
  requests: { storage: {{ .Values.cache.size }} }
{{- end }}
