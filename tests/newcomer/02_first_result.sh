# From nothing to a trained, evaluated, exported language model
cat > chats.py <<'PY'
import json, random
random.seed(0)
words = "red blue green small large old new quick slow warm".split()
def chat():
    word = random.choice(words)
    return {"messages": [{"role": "user", "content": f"Say {word} twice."}, {"role": "assistant", "content": f"{word} {word}"}]}
for name, count in [("train.jsonl", 400), ("held_out.jsonl", 40)]:
    with open(name, "w") as file:
        file.writelines(json.dumps(chat()) + "\n" for _ in range(count))
PY
python3 chats.py
cp -r "$SOURCES/configs" .
# No model can be downloaded here: a small one is made first, as any Hugging Face folder would be.
loongforge run configs/sft_text.yaml train.steps=2 train.warmup_steps=1 run.name=base
loongforge checkpoint export-hf runs/base model
loongforge init my.yaml --model model --data train.jsonl --method full
cat my.yaml
loongforge check my.yaml
loongforge data inspect train.jsonl --model model --samples 1
loongforge run my.yaml train.epochs=5 train.lr=4e-3 train.warmup_ratio=0.1 eval.path=held_out.jsonl
loongforge evaluate runs/my held_out.jsonl
loongforge generate runs/my --prompt "Say red twice."
echo "Say blue twice." | loongforge chat runs/my
loongforge checkpoint export-hf runs/my exported
loongforge checkpoint verify exported
