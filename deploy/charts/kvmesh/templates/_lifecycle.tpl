{{/*
Stopping a pod: preStop sleeps while endpoints and routers forget the pod; then SIGTERM, at most drainSeconds for what
runs, and for shards saveSeconds for what they store as they leave. The grace period is the sum and a margin.
*/}}
{{- define "kvmesh.preStopSeconds" }}5{{ end }}

{{/* (dict "component" values-of-component) */}}
{{- define "kvmesh.graceNeeded" -}}
{{- add (include "kvmesh.preStopSeconds" . | int) (int .component.drainSeconds) (default 0 .component.saveSeconds | int) -}}
{{- end }}

{{- define "kvmesh.grace" -}}
{{- $margin := 5 -}}
{{- int .component.terminationGracePeriodSeconds | default (add (include "kvmesh.graceNeeded" . | int) $margin) -}}
{{- end }}

{{/*
Probes, all on the plaintext health port (kubelet presents no client certificate). "liveness" is SERVING while the
process answers and no step runs for longer than 120 s; "" while it takes work: the model is loaded, a route is there,
nothing drains. (dict "startSeconds" 300)
*/}}
{{- define "kvmesh.probes" -}}
startupProbe:
  grpc: {port: {{ include "kvmesh.port.health" . }}, service: liveness}
  periodSeconds: 5
  timeoutSeconds: 3
  failureThreshold: {{ divf (.startSeconds | float64) 5.0 | ceil | int | max 2 }}
readinessProbe:
  grpc: {port: {{ include "kvmesh.port.health" . }}}
  periodSeconds: 5
  timeoutSeconds: 3
  failureThreshold: 2
livenessProbe:
  grpc: {port: {{ include "kvmesh.port.health" . }}, service: liveness}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
lifecycle:
  preStop:
    sleep: {seconds: {{ include "kvmesh.preStopSeconds" . }}}
{{- end }}
