{{- define "nvc.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "nvc.labels" -}}
app.kubernetes.io/name: nvc
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "nvc.selector" -}}
app.kubernetes.io/name: nvc
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* Other names than those of the plugin's pods, whose DaemonSet must not take these for its own. */}}
{{- define "nvc.nri.selector" -}}
app.kubernetes.io/name: nvc-nri
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "nvc.nri.labels" -}}
{{ include "nvc.nri.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- /* It looks at no process of the node. */}}
{{- define "nvc.nri.security" -}}
{{- include "nvc.security" . | replace ", SYS_PTRACE]" "]" }}
{{- end }}

{{- define "nvc.mode" -}}
{{- if ne .Values.mode "auto" -}}
{{- .Values.mode -}}
{{- else if .Capabilities.APIVersions.Has "resource.k8s.io/v1" -}}
dra
{{- else -}}
device-plugin
{{- end -}}
{{- end }}

{{- define "nvc.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "nvc.cluster" -}}
{{- printf "%s-%s" (include "nvc.name" .) (.Release.Namespace | trunc 20 | trimSuffix "-") -}}
{{- end }}

{{- /* One value of config.toml. Numbers of values are floating-point numbers for Helm. */}}
{{- define "nvc.toml" -}}
{{- if kindIs "bool" . -}}{{ . }}
{{- else if or (kindIs "int64" .) (kindIs "int" .) -}}{{ . }}
{{- else if kindIs "float64" . -}}{{ if eq . (floor .) }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- else if kindIs "slice" . -}}{{ toJson . }}
{{- else -}}{{ quote . }}{{- end -}}
{{- end }}

{{- /* Nobody asks for a password: metrics name the pods of all tenants, so a network policy says who reads them. */}}
{{- define "nvc.address" -}}
{{- if .Values.metrics.address -}}
{{ .Values.metrics.address }}
{{- else if and .Values.networkPolicy.enabled .Values.networkPolicy.from (not .Values.hostNetwork) -}}
0.0.0.0
{{- else -}}
127.0.0.1
{{- end -}}
{{- end }}

{{- define "nvc.config" -}}
[nvidia-container-cli]
root = {{ .Values.driverRoot | quote }}
load-kmods = false
{{- with .Values.config.nvc }}

[nvc]
{{- range $key, $value := . }}
{{ $key }} = {{ include "nvc.toml" $value }}
{{- end }}
{{- end }}
{{- range .Values.sizes }}

[[nvc.vgpu]]
{{- range $key, $value := . }}
{{ $key }} = {{ include "nvc.toml" $value }}
{{- end }}
{{- end }}

[nvcd]
{{- if .Values.metrics.enabled }}
metrics = "{{ include "nvc.address" . }}:{{ .Values.metrics.nvcdPort }}"
{{- end }}
{{- range $key, $value := .Values.config.nvcd }}
{{ $key }} = {{ include "nvc.toml" $value }}
{{- end }}
{{- end }}

{{- define "nvc.capabilities" -}}
DAC_OVERRIDE, DAC_READ_SEARCH, KILL, SETGID, SETUID, SETPCAP, SYS_CHROOT, SYS_PTRACE
{{- end }}

{{- /* Beside those, nvcd needs BPF and PERFMON to load the tracer, SYS_ADMIN to mount a file system bpf for it and to read the
driver's switch log, NET_ADMIN for the kernel's news of processes. Each of its processes drops what it does not need. */}}
{{- define "nvc.nvcd.capabilities" -}}
{{ include "nvc.capabilities" . }}, BPF, PERFMON, SYS_ADMIN, NET_ADMIN
{{- end }}

{{- define "nvc.security" -}}
{{- if .Values.privileged }}
privileged: true
{{- else }}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
  add: [{{ include "nvc.capabilities" . }}]
{{- end }}
readOnlyRootFilesystem: true
runAsUser: 0
{{- end }}

{{- /* SYS_ADMIN stands for privilege escalation. AppArmor's default profile forbids mounts. */}}
{{- define "nvc.nvcd.security" -}}
{{- if .Values.privileged }}
{{- include "nvc.security" . }}
{{- else }}
allowPrivilegeEscalation: true
capabilities:
  drop: [ALL]
  add: [{{ include "nvc.nvcd.capabilities" . }}]
{{- if semverCompare ">=1.30-0" .Capabilities.KubeVersion.Version }}
appArmorProfile: {type: Unconfined}
{{- end }}
readOnlyRootFilesystem: true
runAsUser: 0
{{- end }}
{{- end }}

{{- /* What every program of nvc on the node needs: the same paths as on the host. */}}
{{- define "nvc.mounts" -}}
- {name: nvc, mountPath: /opt/nvc, readOnly: true}
- {name: config, mountPath: /etc/nvc/config.toml, subPath: config.toml, readOnly: true}
- {name: run-nvidia, mountPath: /run/nvidia, readOnly: true, mountPropagation: HostToContainer}
- {name: dev, mountPath: /dev}
- {name: tmp, mountPath: /tmp}
{{- if eq .Values.driverRoot "/" }}
- {name: usr, mountPath: /usr, readOnly: true}
- {name: ldcache, mountPath: /etc/ld.so.cache, readOnly: true}
{{- else if not (hasPrefix "/run/nvidia/" .Values.driverRoot) }}
- {name: driver, mountPath: {{ .Values.driverRoot }}, readOnly: true, mountPropagation: HostToContainer}
{{- end }}
{{- end }}
