{{- /* The pods of elastic jobs: one that decides which of the others are in the job, and runs no rank ... */}}
{{- define "ringcore.rendezvous" -}}
restartPolicy: Never
# Longer than the ranks have to end: the other pods are told then.
terminationGracePeriodSeconds: 60
containers:
  - name: rendezvous
    image: {{ printf "%q" .Values.image }}
    command:
      - ringrun
      - --listen={{ .Values.port }}
{{- if not .trainer }}
      # So many ranks are waited for at the beginning, as long as RINGCORE_START_TIMEOUT_S says.
      - -np={{ mul .Values.workers .Values.ranksPerWorker }}
{{- end }}
      - --min-np={{ mul .Values.minWorkers .Values.ranksPerWorker }}
      # With fewer than the least it waits longer: they may have come only when the start is over.
      - --elastic-timeout={{ mul 2 .Values.startTimeoutSeconds }}
    env:
      - name: RINGCORE_KEY_FILE
        value: /run/secrets/ringcore/key
      - name: RINGCORE_START_TIMEOUT_S
        value: "{{ .Values.startTimeoutSeconds }}"
    ports:
      - containerPort: {{ .Values.port }}
    resources:
      requests:
        cpu: 100m
        memory: 128Mi
      limits:
        memory: 256Mi
    volumeMounts:
      - name: key
        mountPath: /run/secrets/ringcore
        readOnly: true
volumes:
  - name: key
    secret:
      secretName: {{ .Values.keySecret }}
      defaultMode: 0400
{{- end }}
{{- /* ... and the others, which come to the `endpoint`. */}}
{{- define "ringcore.node" -}}
restartPolicy: Never
# Its ranks leave at their next commit.
terminationGracePeriodSeconds: 60
containers:
  - name: node
    image: {{ printf "%q" .Values.image }}
    command:
      - ringrun
      - --nnodes=1:{{ max 2 .Values.workers }}
      - --nproc-per-node={{ .Values.ranksPerWorker }}
      - --rdzv-endpoint={{ .endpoint }}:{{ .Values.port }}
    args:
{{- range .Values.command }}
      - {{ printf "%q" . }}
{{- end }}
    env:
{{- if .set }}
      # The name of the JobSet begins those of its pods.
      - name: JOBSET_NAME
        valueFrom:
          fieldRef:
            fieldPath: metadata.labels['jobset.sigs.k8s.io/jobset-name']
{{- end }}
      - name: RINGCORE_KEY_FILE
        value: /run/secrets/ringcore/key
      - name: RINGCORE_START_TIMEOUT_S
        value: "{{ .Values.startTimeoutSeconds }}"
    resources:
      requests:
        cpu: {{ printf "%q" .Values.cpu }}
        memory: {{ .Values.memory }}
      limits:
        memory: {{ .Values.memory }}
{{- if .Values.gpus }}
        nvidia.com/gpu: {{ .Values.gpus }}
{{- end }}
    volumeMounts:
      - name: key
        mountPath: /run/secrets/ringcore
        readOnly: true
      - name: shared-memory
        mountPath: /dev/shm
volumes:
  - name: key
    secret:
      secretName: {{ .Values.keySecret }}
      defaultMode: 0400
  - name: shared-memory
    emptyDir:
      medium: Memory
      sizeLimit: {{ .Values.sharedMemory }}
{{- end }}
{{- /* A pod that fails is counted, and one that Kubernetes takes away is not. */}}
{{- define "ringcore.disruptions" -}}
rules:
  - action: Ignore
    onPodConditions:
      - type: DisruptionTarget
{{- end }}
{{- /* Nor is one that was told to end, or whose launcher was. */}}
{{- define "ringcore.node-disruptions" -}}
{{ include "ringcore.disruptions" . }}
  # This pod was told to end, or the one that decides, whose Job counts it where the job itself fails so.
  - action: Ignore
    onExitCodes:
      containerName: node
      operator: In
      values: [143]
{{- end }}
{{- /* Both as a JobSet. If the pod that decides fails, all begin anew, from the job's checkpoint. */}}
{{- define "ringcore.jobset" -}}
network:
  enableDNSHostnames: true
  publishNotReadyAddresses: true
successPolicy:
  operator: All
  targetReplicatedJobs:
    - rendezvous
failurePolicy:
  maxRestarts: {{ .Values.restarts }}
replicatedJobs:
  - name: rendezvous
    replicas: 1
    template:
      spec:
        completionMode: Indexed
        completions: 1
        parallelism: 1
        backoffLimit: 0
        podFailurePolicy:
{{ include "ringcore.disruptions" . | indent 10 }}
        template:
          spec:
{{ include "ringcore.rendezvous" . | indent 12 }}
  - name: node
    replicas: 1
    template:
{{- if .trainer }}
      metadata:
        labels:
          trainer.kubeflow.org/trainjob-ancestor-step: trainer
{{- end }}
      spec:
        completionMode: Indexed
        completions: {{ .Values.workers }}
        parallelism: {{ .Values.workers }}
        # A pod that fails comes again so often, and one that is told to end however often it is.
        backoffLimitPerIndex: {{ .Values.restarts }}
        podFailurePolicy:
{{ include "ringcore.node-disruptions" . | indent 10 }}
        template:
          spec:
{{ include "ringcore.node" (dict "Values" .Values "set" true "endpoint" "$(JOBSET_NAME)-rendezvous-0-0.$(JOBSET_NAME)") | indent 12 }}
{{- end }}
