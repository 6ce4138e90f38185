{{/* Names and labels. */}}
{{- define "kvmesh.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 30 | trimSuffix "-" -}}
{{- end }}

{{/* At most 30 characters, so that the longest name made of it fits a label. */}}
{{- define "kvmesh.fullname" -}}
{{- $name := include "kvmesh.name" . -}}
{{- $full := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) -}}
{{- default $full .Values.fullnameOverride | trunc 30 | trimSuffix "-" -}}
{{- end }}

{{/* (dict "root" $ "component" "router") */}}
{{- define "kvmesh.selectorLabels" -}}
app.kubernetes.io/name: {{ include "kvmesh.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "kvmesh.labels" -}}
{{ include "kvmesh.selectorLabels" . }}
app.kubernetes.io/part-of: kvmesh
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | quote }}
{{- end }}

{{/* Of pods: nothing that changes with the chart's version, which would restart them. */}}
{{- define "kvmesh.podLabels" -}}
{{ include "kvmesh.selectorLabels" . }}
app.kubernetes.io/part-of: kvmesh
{{- end }}

{{- define "kvmesh.serviceAccountName" -}}
{{- .Values.serviceAccount.create | ternary (include "kvmesh.fullname" .) "default" | default .Values.serviceAccount.name -}}
{{- end }}

{{- define "kvmesh.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ kindIs "string" $image.tag | ternary $image.tag (int64 $image.tag | toString) | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* The name within the cluster of a service, or of a pod behind a headless one: (dict "root" $ "name" "…") */}}
{{- define "kvmesh.host" -}}
{{ .name }}.{{ .root.Release.Namespace }}.svc.{{ .root.Values.clusterDomain }}
{{- end }}

{{/* Ports of every pod. */}}
{{- define "kvmesh.port.grpc" }}50051{{ end }}
{{- define "kvmesh.port.health" }}50052{{ end }}
{{- define "kvmesh.port.metrics" }}9464{{ end }}

{{/* Bytes of a quantity, as digits: (dict "value" "1.5Gi"). Numbers arrive as float64: never print those as they are. */}}
{{- define "kvmesh.bytes" -}}
{{- if kindIs "string" .value -}}
{{- $units := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- $number := regexFind "^[0-9]+(\\.[0-9]+)?" .value -}}
{{- $unit := trimPrefix $number .value -}}
{{- if or (eq $number "") (not (hasKey $units $unit)) -}}
{{- fail (printf "%q is not a quantity: digits with one of k M G T Ki Mi Gi Ti, or none, are" .value) -}}
{{- end -}}
{{- mulf (float64 $number) (get $units $unit | float64) | int64 -}}
{{- else -}}
{{- int64 .value -}}
{{- end -}}
{{- end }}

{{/* Name of a stage's StatefulSet: (dict "root" $ "stage" stage). By its layers, so that another split makes other ones. */}}
{{- define "kvmesh.stageName" -}}
{{- printf "%s-shard-%d-%d" (include "kvmesh.fullname" .root) (index .stage.layers 0 | int) (index .stage.layers 1 | int) -}}
{{- end }}

{{/* Tier and object name of a store by its key in values: (dict "root" $ "store" "ramFile"). */}}
{{- define "kvmesh.tier" -}}
{{- get (dict "ram" "ram" "ramFile" "ram_file" "disk" "disk") .store -}}
{{- end }}
{{- define "kvmesh.storeName" -}}
{{- printf "%s-store-%s" (include "kvmesh.fullname" .root) (include "kvmesh.tier" . | replace "_" "-") -}}
{{- end }}
