#!/usr/bin/env bash
# Checks loongforge on a GPU, most valuable stage first; made by `cargo xtask gpu`. Needs no network and no compiler: a
# driver, and Python 3 with torch 2.11 (for its CUDA libraries) and transformers (for stage 5).
#
#   ./run.sh [--device cuda|cpu] [--quick] [STAGE…]
#
# Each stage has a time limit, prints as it goes, and leaves report/STAGE.txt and its logs in report/STAGE. Exit code 1 where a
# stage failed.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")" || exit 2
device=cuda quick=no inner=no stages=()
while [ $# -gt 0 ]; do
  case $1 in
    --device) device=$2; shift 2 ;;
    --quick) quick=yes; shift ;;
    --inner) inner=yes; shift ;;
    [1-5]) stages+=("$1"); shift ;;
    *) echo "unknown argument $1; usage: ./run.sh [--device cuda|cpu] [--quick] [STAGE…]" >&2; exit 2 ;;
  esac
done
[ ${#stages[@]} -gt 0 ] || stages=(1 2 3 4 5)
python=${PYTHON:-python3}
program=$PWD/loongforge
# Processes at once: each takes a core and, on a GPU, half a GiB of it.
jobs=$(nproc)
[ "$jobs" -le 16 ] || jobs=16

if [ "$device" = cuda ] && [ $inner = no ]; then
  lib=$("$python" -c 'import importlib.util as u, os; print(os.path.join(os.path.dirname(u.find_spec("torch").origin), "lib"))') ||
    { echo "$python has no torch: its CUDA libraries are needed (PYTHON names another)" >&2; exit 2; }
  export LOONGFORGE_TORCH_LIB="$lib" LD_LIBRARY_PATH="$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fi
# The tests of whole runs ask for no device.
[ "$device" = cuda ] || export CUDA_VISIBLE_DEVICES=
export OMP_WAIT_POLICY=PASSIVE GOMP_SPINCOUNT=0 CUBLAS_WORKSPACE_CONFIG=:4096:8

# Calls `$1 WORD` for every word of standard input, side by side; names those that fail, with the end of what they said.
side_by_side() {
  local logs=report/$stage failed
  rm -rf "$logs" && mkdir -p "$logs"
  export -f "$1"
  export logs program device
  # shellcheck disable=SC2016
  xargs -P "$jobs" -I{} bash -c "$1 {} > \$logs/{}.txt 2>&1; echo \$? {}" | while read -r code word; do
    [ "$code" = 0 ] || { echo "FAILED $word (exit code $code)"; grep -v '^$' "$logs/$word.txt" | tail -n 8 | cut -c 1-600; }
    echo "$code" >> "$logs/codes"
  done
  failed=$(grep -vc '^0$' "$logs/codes")
  echo "$(grep -c '^0$' "$logs/codes") fine, $failed failed"
  [ "$failed" = 0 ]
}

one_fixture() {
  timeout 100 "$program" parity --device "$device" "fixtures/$1" && timeout 100 "$program" parity --device "$device" --bf16 "fixtures/$1"
}
# Numbers of every fixture against the reference: float32, then bfloat16.
stage_1() {
  local fixtures=(fixtures/*/)
  [ $quick = yes ] && fixtures=(fixtures/qwen3-seed1/ fixtures/qwen3_moe-seed1/ fixtures/qwen3_vl-seed1/)
  basename -a "${fixtures[@]}" | side_by_side one_fixture
}

# The quick start: again with equal bits, and resumed from its middle with equal bits.
stage_2() {
  local steps=300 every=150 middle
  [ $quick = yes ] && steps=6 every=3
  middle=$(printf 'step-%08d' $every)
  last=$(printf 'step-%08d' $steps)
  rm -rf work && mkdir work && "$program" data digits --out work/data || return 1
  train() {
    "$program" run configs/quickstart.yaml "device=$device" "run.dir=work/$1" model.load=work/data/model \
      data.train.0.path=work/data/train.jsonl '~eval' run.deterministic=true "train.steps=$steps" train.warmup_steps=2 \
      "checkpoint.every_steps=$every" "${@:2}"
  }
  # What is recorded of the third step has kernels on a GPU, and changes nothing.
  train first && train again +watch.profile='{first: 3, steps: 1}' && train resumed "--resume=work/first/checkpoints/$middle" || return 1
  for other in again resumed; do
    "$program" checkpoint diff --tolerance 0 "work/first/checkpoints/$last" "work/$other/checkpoints/$last" ||
      { echo "the weights of first and $other differ"; return 1; }
  done
  [ "$device" = cpu ] || head -n 12 work/again/profile/*.txt | grep -A 9 '^kernels' ||
    { echo "the profile has no kernels"; return 1; }
}

# The first steps of every recipe here and on the CPU.
stage_3() {
  local names=()
  [ $quick = yes ] && names=(sft_text)
  "$python" first_steps.py "$program" "$device" "${names[@]}"
}

one_test() { timeout 200 ./runs --exact "$1"; }
# The tests of whole runs, which train on a GPU where there is one: layouts, kills, resumes, methods, serving. Those of layouts share
# the GPU. Not those that need the repository or Python packages.
stage_4() {
  local root chosen=cat
  root=$(cat root.txt)
  # Where another checkout lies there, it gets what it lacks.
  for path in target/debug/loongforge src/torch/tests/fixtures tests/data configs; do
    [ ! -e "$root/$path" ] || [ "$root/$path" -ef "$PWD/$path" ] || echo "the tests use $root/$path"
    [ -e "$root/$path" ] || { mkdir -p "$(dirname "$root/$path")" && ln -sfn "$PWD/$path" "$root/$path"; } || return 1
  done
  [ $quick = yes ] && chosen="grep equality::replicas_differ"
  # Those that take too long are ignored: named, they would pass without running.
  ./runs --list 2>/dev/null | sed -n 's/: test$//p' |
    grep -vxFf <(./runs --list --ignored 2>/dev/null | sed -n 's/: test$//p') |
    grep -vE '^(benches|clients|disks|parity|preflight|stores|tracking)::|reference::' | $chosen | side_by_side one_test
}

# Packed training against transformers, from the same weights on the same documents.
stage_5() {
  "$python" -c 'import torch, transformers' 2>/dev/null ||
    { echo "not run: $python has no torch and transformers"; return 0; }
  local scale=(--size 0.6b --pack 8192 --steps 12 --skip 4 --rounds 2 --batch 64 --micro 8 16 32 --peers p0 p1)
  [ $quick = yes ] && scale=(--steps 3 --skip 1 --rounds 1 --batch 2 --micro 1 --peers p0)
  "$python" bench/sft_packed.py --binary "$program" --device "$device" --dtype bf16 "${scale[@]}"
}

if [ $inner = yes ]; then
  stage=${stages[0]}
  "stage_$stage"
  exit $?
fi

mkdir -p report
names=([1]="parity" [2]="quick start, repeated and resumed" [3]="first steps of recipes on the CPU and here" [4]="whole runs of the tests"
  [5]="packed training against transformers")
limits=([1]=180 [2]=240 [3]=180 [4]=400 [5]=300)
flags=(--device "$device" --inner)
[ $quick = yes ] && flags+=(--quick)
failed=0
for stage in "${stages[@]}"; do
  echo "== stage $stage: ${names[$stage]} on $device, at most ${limits[$stage]} s"
  begun=$SECONDS
  # In a session of its own: what outlives the limit must not compete with the next stage.
  setsid bash -c 'echo $$ > report/session; exec timeout "$@"' - "${limits[$stage]}" bash "$PWD/run.sh" "${flags[@]}" "$stage" 2>&1 |
    tee "report/$stage.txt"
  code=${PIPESTATUS[0]}
  pkill -KILL -s "$(cat report/session)"
  case $code in
    0) verdict=ok ;;
    124) verdict="FAILED: over its limit" failed=1 ;;
    *) verdict="FAILED: exit code $code" failed=1 ;;
  esac
  echo "== stage $stage: $verdict, $((SECONDS - begun)) s" | tee -a "report/$stage.txt"
done
exit $failed
