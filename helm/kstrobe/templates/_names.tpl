{{/* Name of the chart, as objects carry it in labels. */}}
{{- define "kstrobe.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* Name of the objects: the release's, with the chart's unless that says so already. */}}
{{- define "kstrobe.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{/* What pods are found by; it never changes, since a DaemonSet's selector cannot. The component keeps test pods out. */}}
{{- define "kstrobe.selectorLabels" -}}
app.kubernetes.io/name: {{ include "kstrobe.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: agent
{{- end }}

{{/* Labels of every object. */}}
{{- define "kstrobe.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/name: {{ include "kstrobe.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: kstrobe
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Names of the Service, which the agents answer to. The cluster's domain is in the pods' resolv.conf. */}}
{{- define "kstrobe.hosts" -}}
{{- $name := include "kstrobe.fullname" . }}
{{- $full := printf "%s.%s.svc" $name .Release.Namespace }}
{{- concat (list $name (printf "%s.%s" $name .Release.Namespace) $full (printf "*.%s" $full)) .Values.web.allowedHosts | join "," }}
{{- end }}

{{- define "kstrobe.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "kstrobe.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "kstrobe.image" -}}
{{- $image := .Values.image }}
{{- $name := $image.repository }}
{{- if $image.registry }}{{- $name = printf "%s/%s" $image.registry $image.repository }}{{- end }}
{{- if $image.digest }}{{ printf "%s@%s" $name $image.digest }}{{- else }}{{ printf "%s:%s" $name (default .Chart.AppVersion $image.tag) }}{{- end }}
{{- end }}

{{/* The Kubernetes version to write for. */}}
{{- define "kstrobe.kubeVersion" -}}
{{- default .Capabilities.KubeVersion.Version .Values.kubeVersion }}
{{- end }}
