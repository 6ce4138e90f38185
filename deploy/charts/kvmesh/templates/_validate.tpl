{{/* What the schema cannot say: every refusal names the value, what it is, and the limit. */}}

{{- define "kvmesh.validate" -}}
{{- include "kvmesh.validateStages" . -}}
{{- include "kvmesh.validateModel" . -}}
{{- include "kvmesh.validateMemory" . -}}
{{- include "kvmesh.validateGrace" . -}}
{{- include "kvmesh.validateChoices" . -}}
{{- end }}

{{- define "kvmesh.validateStages" -}}
{{- $layers := int .Values.model.layers -}}
{{- $next := 0 -}}
{{- range $i, $stage := .Values.shards.stages -}}
{{- $begin := index $stage.layers 0 | int -}}
{{- $end := index $stage.layers 1 | int -}}
{{- if ge $begin $end -}}
{{- fail (printf "shards.stages[%d].layers: [%d, %d] is empty; BEGIN must be below END" $i $begin $end) -}}
{{- end -}}
{{- if gt $begin $next -}}
{{- fail (printf "shards.stages[%d].layers: [%d, %d] leaves a gap: no stage has layers %d to %d" $i $begin $end $next (sub $begin 1)) -}}
{{- end -}}
{{- if lt $begin $next -}}
{{- fail (printf "shards.stages[%d].layers: [%d, %d] overlaps the stage before it, which ends at %d" $i $begin $end $next) -}}
{{- end -}}
{{- $next = $end -}}
{{- end -}}
{{- if lt $next $layers -}}
{{- fail (printf "shards.stages: the last stage ends at %d, but model.layers is %d: no stage has layers %d to %d" $next $layers $next (sub $layers 1)) -}}
{{- end -}}
{{- if gt $next $layers -}}
{{- fail (printf "shards.stages: the last stage ends at %d, beyond model.layers, %d" $next $layers) -}}
{{- end -}}
{{- end }}

{{- define "kvmesh.validateModel" -}}
{{- $source := .Values.model.source -}}
{{- if and (eq $source.type "image") (not $source.image.reference) -}}
{{- fail "model.source.image.reference: an image is needed when model.source.type is image" -}}
{{- end -}}
{{- if eq $source.type "url" -}}
{{- if not $source.url.address -}}
{{- fail "model.source.url.address: an address is needed when model.source.type is url" -}}
{{- end -}}
{{- if not (regexMatch "^[0-9a-f]{64}$" $source.url.sha256) -}}
{{- fail (printf "model.source.url.sha256: %q is not 64 hex digits; the digest of the file is needed" $source.url.sha256) -}}
{{- end -}}
{{- end -}}
{{- if and (eq $source.type "persistentVolumeClaim") (not $source.persistentVolumeClaim.claimName) -}}
{{- fail "model.source.persistentVolumeClaim.claimName: a claim is needed when model.source.type is persistentVolumeClaim" -}}
{{- end -}}
{{- end }}

{{/* (dict "name" "stores.ram" "resources" … "parts" (list (list "budget" "1Gi") …)) */}}
{{- define "kvmesh.validateLimit" -}}
{{- $memory := dig "limits" "memory" "" .resources -}}
{{- if not $memory -}}
{{- fail (printf "%s.resources.limits.memory: a limit is needed, or a budget could not be held to it" .name) -}}
{{- end -}}
{{- $limit := include "kvmesh.bytes" (dict "value" $memory) | int64 -}}
{{- $sum := 0 | int64 -}}
{{- $words := list -}}
{{- range .parts -}}
{{- $bytes := include "kvmesh.bytes" (dict "value" (index . 1)) | int64 -}}
{{- $sum = add $sum $bytes -}}
{{- $words = append $words (printf "%s %d" (index . 0) $bytes) -}}
{{- end -}}
{{- if gt $sum $limit -}}
{{- fail (printf "%s: %s make %d bytes, more than resources.limits.memory, %d" .name (join " and " $words) $sum $limit) -}}
{{- end -}}
{{- end }}

{{- define "kvmesh.validateMemory" -}}
{{- $shards := .Values.shards -}}
{{- range $i, $stage := $shards.stages -}}
{{- include "kvmesh.validateLimit" (dict "name" (printf "shards.stages[%d]" $i) "resources" (default $shards.resources $stage.resources)
    "parts" (list (list "kvBudget" (default $shards.kvBudget $stage.kvBudget))
                  (list "saveInflightBudget" $shards.saveInflightBudget)
                  (list "weightMemory" (default $shards.weightMemory $stage.weightMemory)))) -}}
{{- $weights := include "kvmesh.bytes" (dict "value" (default $shards.weightMemory $stage.weightMemory)) | int64 -}}
{{- $cache := include "kvmesh.bytes" (dict "value" $shards.weightsCacheSize) | int64 -}}
{{- if lt $cache $weights -}}
{{- fail (printf "shards.weightsCacheSize: %d bytes is below the weightMemory of shards.stages[%d], %d; a pod that outgrows the volume is evicted" $cache $i $weights) -}}
{{- end -}}
{{- end -}}
{{- if .Values.checkpoints.enabled -}}
{{- range $name := list "ram" "ramFile" -}}
{{- $store := get $.Values.stores $name -}}
{{- if $store.enabled -}}
{{- include "kvmesh.validateLimit" (dict "name" (printf "stores.%s" $name) "resources" $store.resources
    "parts" (list (list "budget" $store.budget) (list "overhead" $store.overhead))) -}}
{{- end -}}
{{- end -}}
{{- $disk := .Values.stores.disk -}}
{{- if $disk.enabled -}}
{{- include "kvmesh.validateLimit" (dict "name" "stores.disk" "resources" $disk.resources "parts" (list (list "overhead" $disk.overhead))) -}}
{{- $budget := include "kvmesh.bytes" (dict "value" $disk.budget) | int64 -}}
{{- $size := include "kvmesh.bytes" (dict "value" $disk.volume.size) | int64 -}}
{{- if gt (mul $budget 100) (mul $size 95) -}}
{{- fail (printf "stores.disk.budget: %d bytes is more than 95 %% of stores.disk.volume.size, %d; the file system needs the rest" $budget $size) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "kvmesh.validateGrace" -}}
{{- $all := dict "router" .Values.router "shards" .Values.shards "meta" .Values.meta
    "stores.ram" .Values.stores.ram "stores.ramFile" .Values.stores.ramFile "stores.disk" .Values.stores.disk -}}
{{- range $name, $component := $all -}}
{{- $grace := int $component.terminationGracePeriodSeconds -}}
{{- $needed := include "kvmesh.graceNeeded" (dict "component" $component) | int -}}
{{- if and (ne $grace 0) (lt $grace $needed) -}}
{{- fail (printf "%s.terminationGracePeriodSeconds: %d is below %d, what preStop (%s), drainSeconds (%d) and saveSeconds (%d) take; 0 computes it"
    $name $grace $needed (include "kvmesh.preStopSeconds" $) (int $component.drainSeconds) (default 0 $component.saveSeconds | int)) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "kvmesh.validateChoices" -}}
{{- if and .Values.tls.certManager.enabled (not .Values.tls.enabled) -}}
{{- fail "tls.certManager.enabled: certificates are asked for, but tls.enabled is false" -}}
{{- end -}}
{{- if and .Values.tls.certManager.enabled (not .Values.tls.certManager.issuerRef.name) -}}
{{- fail "tls.certManager.issuerRef.name: an issuer is needed when tls.certManager.enabled is true" -}}
{{- end -}}
{{- if and .Values.clients.secretName .Values.test.enabled (not .Values.test.tokenSecretName) -}}
{{- fail "test.tokenSecretName: with clients.secretName the test needs a token; set test.enabled to false to do without it" -}}
{{- end -}}
{{- if gt (float64 .Values.meta.lowWatermark) (float64 .Values.meta.highWatermark) -}}
{{- fail (printf "meta.lowWatermark: %v is above meta.highWatermark, %v" .Values.meta.lowWatermark .Values.meta.highWatermark) -}}
{{- end -}}
{{- range $name := list "router" "shards" -}}
{{- $autoscaling := (get $.Values $name).autoscaling -}}
{{- if and $autoscaling.enabled (gt (int $autoscaling.minReplicas) (int $autoscaling.maxReplicas)) -}}
{{- fail (printf "%s.autoscaling.minReplicas: %d is above maxReplicas, %d" $name (int $autoscaling.minReplicas) (int $autoscaling.maxReplicas)) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.checkpoints.enabled (not .Values.stores.ram.enabled) (not .Values.stores.ramFile.enabled) (not .Values.stores.disk.enabled) -}}
{{- fail "stores: none is enabled, but checkpoints.enabled is true; there would be nowhere to save to" -}}
{{- end -}}
{{- end }}
