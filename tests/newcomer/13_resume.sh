# The same losses after a kill and resume, and after losing an encoder
cp -r "$SOURCES/configs" .
loongforge run configs/sft_text.yaml run.name=whole run.deterministic=true > /dev/null 2>&1
loongforge run configs/sft_text.yaml run.name=killed run.deterministic=true checkpoint.every_steps=10 train.steps=40 > /dev/null 2>&1 &
until [ -d runs/killed/checkpoints/step-00000010 ]; do sleep 0.05; done
kill -9 $!
wait $! 2>/dev/null || true
loongforge run configs/sft_text.yaml run.name=killed run.deterministic=true checkpoint.every_steps=10 --resume
python3 - <<'PY'
import json
def losses(name):
    return {row["step"]: row["loss"] for row in map(json.loads, open(f"runs/{name}/metrics.jsonl")) if "loss" in row}
print("equal losses:", losses("whole") == losses("killed"), len(losses("whole")))
PY
loongforge checkpoint diff runs/whole/checkpoints/step-00000040 runs/killed/checkpoints/step-00000040
# An encoder of two is killed: the same run with and without it.
loongforge data digits --out runs/quickstart/data > /dev/null
loongforge drill configs/quickstart.yaml --faults "encoder/0: kill at step 3" pools.encoder.replicas=2 train.steps=8 train.warmup_steps=2 2>&1 |
  sed -n '/^injected/,$p'
