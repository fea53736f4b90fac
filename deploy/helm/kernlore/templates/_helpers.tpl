{{- define "kernlore.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "kernlore.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "kernlore.labels" -}}
{{ include "kernlore.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "kernlore.secret" -}}
{{- .Values.secret.existing | default (include "kernlore.name" .) -}}
{{- end -}}

{{- define "kernlore.hasSecret" -}}
{{- if or .Values.secret.existing .Values.secret.values -}}yes{{- end -}}
{{- end -}}

{{- define "kernlore.allowedHosts" -}}
{{- $name := include "kernlore.name" . -}}
{{- $names := list $name (printf "%s.%s" $name .Release.Namespace) (printf "%s.%s.svc" $name .Release.Namespace) -}}
{{- if and .Values.ingress.enabled .Values.ingress.host -}}
{{- $names = append $names .Values.ingress.host -}}
{{- end -}}
{{- if .Values.settings.allowed_hosts -}}
{{- $names = append $names .Values.settings.allowed_hosts -}}
{{- end -}}
{{- join "," $names -}}
{{- end -}}

{{- /* Request PATH with the key of the secret, if there is one. */ -}}
{{- define "kernlore.ask" -}}
- python
- -c
- |
  import os, urllib.request
  key = os.environ.get("KERNLORE_KEY")
  headers = {"authorization": "Bearer " + key} if key else {}
  request = urllib.request.Request("http://127.0.0.1:8321{{ . }}", headers=headers)
  urllib.request.urlopen(request, timeout=4)
{{- end -}}

{{- define "kernlore.check" -}}
{{- if gt (int .Values.replicas) 1 -}}
{{- if not (or .Values.secret.existing (hasKey .Values.secret.values "KERNLORE_CATALOG")) -}}
{{- fail "replicas > 1 need one catalog: put KERNLORE_CATALOG=postgresql+psycopg://... into secret.values or secret.existing" -}}
{{- end -}}
{{- if not .Values.settings.blob_url -}}
{{- fail "replicas > 1 need one store of files: set settings.blob_url, such as s3://BUCKET/PREFIX" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.host) -}}
{{- fail "ingress.enabled needs ingress.host" -}}
{{- end -}}
{{- end -}}
