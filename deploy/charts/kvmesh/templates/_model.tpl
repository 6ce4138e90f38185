{{/* Where the model's files come from: a claim, or a copy that an init container makes into an emptyDir. */}}

{{- define "kvmesh.modelPath" -}}
/models/{{ .Values.model.path }}
{{- end }}

{{- define "kvmesh.modelVolumes" -}}
- name: model
{{- if eq .Values.model.source.type "persistentVolumeClaim" }}
  persistentVolumeClaim: {claimName: {{ .Values.model.source.persistentVolumeClaim.claimName | quote }}, readOnly: true}
{{- else }}
  emptyDir: {sizeLimit: {{ .Values.model.source.volumeSize | quote }}}
{{- end }}
{{- end }}

{{- define "kvmesh.modelInit" -}}
{{- $source := .Values.model.source }}
{{- if eq $source.type "image" }}
initContainers:
  - name: copy-model
    image: {{ $source.image.reference | quote }}
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    command: [cp, -R, {{ printf "%s/." (trimSuffix "/" $source.image.path) | quote }}, /models/]
    securityContext:
      {{- include "kvmesh.containerSecurity" . | nindent 6 }}
    resources:
      requests: {cpu: 100m, memory: 64Mi}
      limits: {memory: 256Mi}
    volumeMounts:
      - {name: model, mountPath: /models}
{{- else if eq $source.type "url" }}
initContainers:
  - name: fetch-model
    image: {{ $source.url.image | quote }}
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    # A download that was cut off goes on where it ended; what does not have the digest never gets its name.
    command: [sh, -euc]
    args:
      - |
        if [ -f "$TARGET" ]; then exit 0; fi
        mkdir -p "$(dirname "$TARGET")"
        curl --fail --silent --show-error --location --retry 5 --retry-all-errors --continue-at - \
          --output "$TARGET.part" "$ADDRESS"
        echo "$SHA256  $TARGET.part" | sha256sum -c - || { rm -f "$TARGET.part"; exit 1; }
        mv "$TARGET.part" "$TARGET"
    env:
      - {name: ADDRESS, value: {{ $source.url.address | quote }}}
      - {name: SHA256, value: {{ $source.url.sha256 | quote }}}
      - {name: TARGET, value: {{ include "kvmesh.modelPath" . | quote }}}
    securityContext:
      {{- include "kvmesh.containerSecurity" . | nindent 6 }}
    resources:
      requests: {cpu: 100m, memory: 64Mi}
      limits: {memory: 256Mi}
    volumeMounts:
      - {name: model, mountPath: /models}
{{- end }}
{{- end }}
