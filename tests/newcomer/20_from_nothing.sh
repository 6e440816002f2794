# From an empty environment to a chat with an exported model, with the seconds of each step
# `cargo xtask wheel` makes the wheel; pip takes torch from the package registry.
wheel=$(ls "$SOURCES"/target/wheel/loongforge-*.whl 2>/dev/null) || { echo "no wheel: run \`cargo xtask wheel\` first"; exit 77; }
step() { printf '\n%% %s\n' "$*"; local begin=$SECONDS; "$@" || return; echo "[$((SECONDS - begin)) s]"; }
step python3 -m venv venv
step venv/bin/pip install --quiet "$wheel" || { echo "pip cannot install torch here"; exit 77; }
export PATH=$PWD/venv/bin:$PATH
cp -r "$SOURCES/configs" .
for words in "red red" "blue blue" "green green" "slow slow" "warm warm"; do
  for number in $(seq 80); do
    echo "{\"messages\": [{\"role\": \"user\", \"content\": \"Say ${words% *} twice.\"}, {\"role\": \"assistant\", \"content\": \"$words\"}]}"
  done
done > train.jsonl
# No model can be downloaded here: a small one is made first, as any Hugging Face folder would be.
loongforge run configs/sft_text.yaml train.steps=2 train.warmup_steps=1 run.name=base > /dev/null 2>&1
loongforge checkpoint export-hf runs/base model
step loongforge init my.yaml --model model --data train.jsonl --method full
step loongforge run my.yaml train.epochs=8 train.lr=4e-3 data.val_size=0.1
step loongforge evaluate runs/my train.jsonl --limit 40
echo "Say blue twice." | step loongforge chat runs/my
step loongforge checkpoint export-hf runs/my exported --dtype bf16
step loongforge checkpoint verify exported
echo "Say red twice." | step loongforge generate exported --prompt -
