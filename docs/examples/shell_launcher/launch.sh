#!/bin/sh
# Start hybrid pre-training:  [PATTERN=… DEPTH=… TP=… PP=… EP=… GPUS=…] launch.sh start | words | layers
set -eu
task=${1:-start}
pattern=${PATTERN:-AEME} depth=${DEPTH:-52} tp=${TP:-1} pp=${PP:-1} ep=${EP:-1} gpus=${GPUS:-8}

case $pattern in '' | *[!AEMR]*) echo "pattern '$pattern' has a letter that is not A, E, M or R" >&2; exit 2 ;; esac
layers=$pattern
while [ "${#layers}" -lt "$depth" ]; do layers=$layers$pattern; done
layers=$(printf "%.${depth}s" "$layers")

set -- torchrun --standalone "--nproc_per_node=$gpus" pretrain_hybrid.py \
  --hybrid-layer-pattern "$(printf %s "$layers" | tr AR '*M')" \
  --hidden-size "${HIDDEN:-3584}" --num-attention-heads "${HEADS:-56}" \
  --tensor-model-parallel-size "$tp" --pipeline-model-parallel-size "$pp" --expert-model-parallel-size "$ep"
if [ "$tp" -gt 1 ]; then set -- "$@" --sequence-parallel; fi

case $task in
  layers) printf '%s\n' "$layers" ;; # what it would build, one letter a layer
  words) printf '%s\n' "$@" ;; # what it would run, one word a line
  start) CUDA_DEVICE_MAX_CONNECTIONS=1 exec "$@" ;;
esac
