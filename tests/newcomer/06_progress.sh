# Progress, held-out loss while training, curves, best checkpoint
cp -r "$SOURCES/configs" .
loongforge run configs/sft_text.yaml eval.path=configs/samples/chat.jsonl eval.every_steps=10 checkpoint.every_steps=10
tail -2 runs/sft_text/metrics.jsonl
head -c 600 runs/sft_text/eval.jsonl
ls runs/sft_text
