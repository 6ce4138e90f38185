{{/* What all pods share. */}}

{{/* (dict "root" $ "component" values-of-component "labels" labels-of-component) */}}
{{- define "kvmesh.podSettings" -}}
serviceAccountName: {{ include "kvmesh.serviceAccountName" .root }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: {{ int64 .root.Values.security.runAsUser }}
  runAsGroup: {{ int64 .root.Values.security.runAsGroup }}
  fsGroup: {{ int64 .root.Values.security.fsGroup }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- with .root.Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
terminationGracePeriodSeconds: {{ include "kvmesh.grace" . }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: {{ .root.Values.spread.topologyKey | quote }}
    whenUnsatisfiable: {{ .root.Values.spread.whenUnsatisfiable }}
    labelSelector:
      matchLabels:
        {{- .labels | nindent 8 }}
{{- with .component.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .component.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "kvmesh.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Image, ports, security, resources: (dict "root" $ "component" …) */}}
{{- define "kvmesh.containerSettings" -}}
image: {{ include "kvmesh.image" .root | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
ports:
  - {name: grpc, containerPort: {{ include "kvmesh.port.grpc" . }}}
  - {name: health, containerPort: {{ include "kvmesh.port.health" . }}}
  - {name: metrics, containerPort: {{ include "kvmesh.port.metrics" . }}}
securityContext:
  {{- include "kvmesh.containerSecurity" . | nindent 2 }}
resources:
  {{- toYaml .component.resources | nindent 2 }}
{{- end }}

{{/* Arguments that every service takes: (dict "root" $ "component" … "callers" "router,shard") */}}
{{- define "kvmesh.serviceArgs" -}}
- --listen={{ .root.Values.listenHost }}:{{ include "kvmesh.port.grpc" . }}
- --health-port={{ include "kvmesh.port.health" . }}
- --metrics-port={{ include "kvmesh.port.metrics" . }}
- --drain-seconds={{ int .component.drainSeconds }}
{{- if .root.Values.tls.enabled }}
- --tls-dir=/tls
- --tls-allow-roles={{ .callers }}
{{- else }}
- --allow-plaintext
{{- end }}
{{- range .component.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{/* Pod's name as $(POD_NAME), node's as $(NODE_NAME). */}}
{{- define "kvmesh.podEnv" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
{{- end }}

{{- define "kvmesh.metaAddress" -}}
{{- include "kvmesh.host" (dict "root" . "name" (printf "%s-meta" (include "kvmesh.fullname" .))) }}:{{ include "kvmesh.port.grpc" . }}
{{- end }}
{{- define "kvmesh.shardsAddress" -}}
{{- include "kvmesh.host" (dict "root" . "name" (printf "%s-shards" (include "kvmesh.fullname" .))) }}:{{ include "kvmesh.port.grpc" . }}
{{- end }}

{{/* Every pod of every enabled store, however many there are. */}}
{{- define "kvmesh.storesAllowed" -}}
{{- $names := list -}}
{{- range $key, $store := .Values.stores -}}
{{- if $store.enabled -}}
{{- $host := include "kvmesh.host" (dict "root" $ "name" (include "kvmesh.storeName" (dict "root" $ "store" $key))) -}}
{{- $names = append $names (printf "*.%s:%s" $host (include "kvmesh.port.grpc" $)) -}}
{{- end -}}
{{- end -}}
{{- join "," $names -}}
{{- end }}

{{/* Certificates of one role: (dict "root" $ "role" "router"). Secrets hold tls.crt, tls.key and ca.crt. */}}
{{- define "kvmesh.tlsSecret" -}}
{{- printf "%s-%s" (.root.Values.tls.secretPrefix | default (include "kvmesh.fullname" .root)) .role -}}
{{- end }}
{{- define "kvmesh.tlsMount" -}}
{{- if .Values.tls.enabled }}
- {name: tls, mountPath: /tls, readOnly: true}
{{- end }}
{{- end }}
{{- define "kvmesh.tlsVolume" -}}
{{- if .root.Values.tls.enabled }}
- name: tls
  secret: {secretName: {{ include "kvmesh.tlsSecret" . | quote }}, defaultMode: 0440}
{{- end }}
{{- end }}
