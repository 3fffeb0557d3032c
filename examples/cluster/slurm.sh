#!/bin/bash
# Train on the nodes of a SLURM allocation: sbatch examples/cluster/slurm.sh
# Two to three minutes before its time limit the run saves; the job is queued again and goes on. To end it for good, saved:
#     scancel --batch --signal=INT JOB       (a plain scancel ends all processes at once: up to a minute is lost)
#SBATCH --job-name=raypid
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --time=01:00:00
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=raypid-%j.log

set -u
# source ~/venv/bin/activate            # the same Python, raypid and Ray on each node: a folder that all see, or a container
run=${RUN:-runs/slurm}                  # on a disk that the next node sees too, if the job is queued again
train=(--run PPO --env CartPole-v1 --seed 0 --stop "${STOP:-2000000}")
workers=$((SLURM_JOB_NUM_NODES * SLURM_CPUS_PER_TASK - 1))    # one CPU is left to the learner, in the process that trains

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
host=$(getent ahostsv4 "$first" | awk 'NR == 1 { print $1 }')
[ -n "$host" ] || { echo "No address is known for $first." >&2; exit 1; }
export PORT=$((20000 + SLURM_JOB_ID % 100 * 100)) TEMP=/tmp/ray-$SLURM_JOB_ID    # of this job alone, as others may share the nodes
export HEAD=$host:$PORT
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')

# Ray on each node. It would count all cores of a node, whatever SLURM gives: hence --num-cpus.
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" --overlap --kill-on-bad-exit=0 \
    --output="raypid-%j-node%t.log" bash -c '
    trap "rm -rf $TEMP" EXIT
    common="--block --num-cpus=$SLURM_CPUS_PER_TASK --temp-dir=$TEMP --disable-usage-stats --node-manager-port=$((PORT + 1))
        --object-manager-port=$((PORT + 2)) --min-worker-port=$((PORT + 3)) --max-worker-port=$((PORT + 99))"
    if [ "$SLURM_PROCID" = 0 ]; then
        ray start --head --node-ip-address="${HEAD%:*}" --port="$PORT" --include-dashboard=false $common
    else
        until ray health-check --address "$HEAD" 2>/dev/null; do sleep 1; done
        ray start --address="$HEAD" $common
    fi' &
nodes=$!

again=0 child=
pass_on() { [ -z "$child" ] || kill -TERM "$child" 2>/dev/null; }
trap 'again=1; pass_on' TERM            # SLURM, 120 to 180 s before the time limit
trap pass_on INT                        # you
run() {                                 # a signal to this shell ends `wait`, not the command
    "$@" & child=$!
    wait "$child"; status=$?
    while kill -0 "$child" 2>/dev/null; do wait "$child"; status=$?; done
    return "$status"
}

run timeout 300 python -c '
import os, subprocess, sys, time
while subprocess.run(["ray", "health-check", "--address", os.environ["HEAD"]], capture_output=True).returncode:
    time.sleep(1)
import ray
try:
    ray.init(os.environ["HEAD"], logging_level="ERROR", log_to_driver=False)
except Exception as error:
    sys.exit(f"Ray did not start, as the nodes\x27 logs say: {error}")
while sum(node["Alive"] for node in ray.nodes()) < int(os.environ["SLURM_JOB_NUM_NODES"]):
    time.sleep(1)
' && {
    # --resume without a folder: the run in $run goes on, or begins if none is there or it has no checkpoint yet
    run python -m raypid train "${train[@]}" --out "$run" --resume --address "$HEAD" --num-workers "$workers"
}
scancel --signal=TERM "$SLURM_JOB_ID.0" 2>/dev/null; wait "$nodes"    # Ray ends and removes its files
case $again$status in 10 | 1143) scontrol requeue "$SLURM_JOB_ID" ;; esac    # saved, or not yet begun
exit "$status"
