#!/bin/bash
# sbatch --wait docs/ci/slurm.sh: one node judges on RANKS processes; sbatch --wait ends with the code of the verdict.
#SBATCH --job-name=rankproof
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=8
#SBATCH --time=01:00:00
#SBATCH --output=rankproof-%j.log
set -euo pipefail
: "${STACK:=our_stack.gate:Stack}" "${PROFILE:=dist4}" "${RANKS:=4}" "${REPORT:=reports/rankproof-${SLURM_JOB_ID:-0}}"
options=(--stack "$STACK" --profile "$PROFILE" --report "$REPORT" --deviations rankproof-deviations.toml)
if [ "$RANKS" -gt 1 ]; then options+=(--ranks "$RANKS"); fi
# srun ends with the highest code of its tasks, and there is one: rankproof starts the ranks itself. `pipefail` keeps
# the code behind tee.
srun --ntasks=1 --kill-on-bad-exit=1 rankproof check "${options[@]}" 2>&1 | tee rankproof.log
