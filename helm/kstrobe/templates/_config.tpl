{{/* kstrobe.yaml, from the values that the chart has names for and `config`, whose word is the last. */}}
{{- define "kstrobe.config" -}}
{{- $probes := dict }}
{{- with .Values.probes.enable }}{{- $_ := set $probes "enable" . }}{{- end }}
{{- $disable := .Values.probes.disable }}
{{- if not .Values.hostNetwork }}
{{- /* These read the network namespace that the agent is in: without hostNetwork, their own pod's instead of the node's. */}}
{{- range list "tcp_listen" "tcp_loss" }}
{{- if not (has . (concat $disable $.Values.probes.enable)) }}{{- $disable = append $disable . }}{{- end }}
{{- end }}
{{- end }}
{{- with $disable }}{{- $_ := set $probes "disable" . }}{{- end }}
{{- with .Values.probes.override }}{{- $_ := set $probes "override" . }}{{- end }}
{{- $config := dict }}
{{- with $probes }}{{- $_ := set $config "probes" . }}{{- end }}
{{- if .Values.captures.enabled }}{{- $_ := set $config "captures" (include "kstrobe.captures" . | fromYaml) }}{{- end }}
{{- with .Values.history.disk }}{{- if .enabled }}
{{- $_ := set $config "history" (dict "dir" "/var/lib/kstrobe-history" "keep" .keep "max_bytes" .maxBytes) }}
{{- end }}{{- end }}
{{- with .Values.exporters }}{{- $_ := set $config "exporters" . }}{{- end }}
{{- $config = mergeOverwrite $config (deepCopy .Values.config) }}
{{- if $config }}{{ toYaml $config }}{{- end }}
{{- end }}

{{- define "kstrobe.captures" -}}
{{- with .Values.captures -}}
dir: /var/lib/kstrobe/captures
max_total_bytes: {{ .maxTotalBytes }}
max_bytes: {{ .maxBytes }}
max_duration: {{ .maxDuration }}
max_concurrent: {{ .maxConcurrent }}
ttl: {{ .ttl }}
{{- if .tokenSecret.name }}
token_file: /etc/kstrobe/token/{{ .tokenSecret.key }}
{{- end }}
{{- with .alertmanagerDefault }}
alertmanager_default: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{/* Whether requests need TLS, and whether they need anything that the kubelet's probes do not have. */}}
{{- define "kstrobe.scheme" -}}
{{- if .Values.web.tls.secretName }}HTTPS{{- else }}HTTP{{- end }}
{{- end }}
{{- define "kstrobe.web" -}}
{{- if or .Values.web.tls.secretName .Values.web.config .Values.web.existingSecret }}true{{- end }}
{{- end }}
{{- define "kstrobe.guarded" -}}
{{- if or .Values.web.existingSecret (hasPrefix "Require" .Values.web.tls.clientAuthType) .Values.web.config.basic_auth_users }}true{{- end }}
{{- end }}

{{/* Whether only the node itself reaches the agent. */}}
{{- define "kstrobe.loopback" -}}
{{- if regexMatch "^(127\\.|localhost$|\\[?::1\\]?$)" .Values.metrics.address }}true{{- end }}
{{- end }}

{{/* One of the kubelet's probes: over HTTP where it may ask, else whether the port is open. */}}
{{- define "kstrobe.probe" -}}
{{- $root := index . 0 }}{{- $path := index . 1 }}{{- $times := index . 2 -}}
{{- if include "kstrobe.guarded" $root -}}
tcpSocket:
  port: metrics
{{- else -}}
httpGet:
  path: {{ $path }}
  port: metrics
  scheme: {{ include "kstrobe.scheme" $root }}
{{- end }}
{{- if include "kstrobe.loopback" $root }}
  # By default the kubelet asks the pod's address, which has no listener.
  host: {{ $root.Values.metrics.address | trimPrefix "[" | trimSuffix "]" | quote }}
{{- end }}
{{ toYaml $times }}
{{- end }}

{{/* Capabilities: the list, and one for each thing that was asked for. */}}
{{- define "kstrobe.capabilities" -}}
{{- $all := .Values.capabilities }}
{{- if .Values.selfProfiling.enabled }}{{- $all = append $all "SYS_ADMIN" }}{{- end }}
{{- if .Values.userStacks.enabled }}{{- $all = append $all "SYS_PTRACE" }}{{- end }}
{{- uniq $all | toYaml }}
{{- end }}

{{/* What a pod needs to look at the kernel: the same for the agent and for the test that asks `kstrobe doctor`. */}}
{{- define "kstrobe.podSecurity" -}}
{{- $fields := semverCompare ">=1.30.0-0" (include "kstrobe.kubeVersion" .) -}}
securityContext:
  {{- with .Values.podSecurityContext }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  seccompProfile:
    {{- toYaml .Values.seccompProfile | nindent 4 }}
  {{- if $fields }}
  appArmorProfile:
    {{- toYaml .Values.appArmorProfile | nindent 4 }}
  {{- end }}
  {{- with .Values.seLinuxOptions }}
  seLinuxOptions:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{- define "kstrobe.containerSecurity" -}}
securityContext:
  {{- toYaml .Values.securityContext | nindent 2 }}
  capabilities:
    drop: [ALL]
    {{- with include "kstrobe.capabilities" . | fromYamlArray }}
    add:
      {{- toYaml . | nindent 6 }}
    {{- end }}
{{- end }}

{{/* Before Kubernetes 1.30 the profile of AppArmor is an annotation. */}}
{{- define "kstrobe.appArmorAnnotation" -}}
{{- if not (semverCompare ">=1.30.0-0" (include "kstrobe.kubeVersion" .)) }}
{{- $profile := .Values.appArmorProfile }}
container.apparmor.security.beta.kubernetes.io/kstrobe: {{ if eq $profile.type "Localhost" }}localhost/{{ $profile.localhostProfile }}{{ else if eq $profile.type "RuntimeDefault" }}runtime/default{{ else }}unconfined{{ end }}
{{- end }}
{{- end }}

{{/* Views of the kernel that a container does not have by itself. */}}
{{- define "kstrobe.kernelMounts" -}}
- name: tracefs
  mountPath: /sys/kernel/tracing
  readOnly: {{ not (or .Values.tracefs.writable .Values.captures.enabled) }}
{{- with .Values.cgroup.hostPath }}
- name: cgroup
  mountPath: /sys/fs/cgroup
  mountPropagation: HostToContainer
  readOnly: true
{{- end }}
{{- end }}
{{- define "kstrobe.kernelVolumes" -}}
- name: tracefs
  hostPath:
    path: {{ .Values.tracefs.hostPath }}
    type: Directory
{{- with .Values.cgroup.hostPath }}
- name: cgroup
  hostPath:
    path: {{ . }}
    type: Directory
{{- end }}
{{- end }}
