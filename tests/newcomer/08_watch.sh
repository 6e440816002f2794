# The page, `top` and Prometheus during and after a run
cp -r "$SOURCES/configs" .
loongforge run configs/sft_text.yaml train.steps=400 watch.listen=127.0.0.1:47123 > log 2>&1 &
until [ -s runs/sft_text/watch.json ] && [ -s runs/sft_text/metrics.jsonl ]; do sleep 0.2; done
COLUMNS=80 loongforge top runs/sft_text --once
address=$(python3 -c "import json; print(json.load(open('runs/sft_text/watch.json'))['address'])" 2>/dev/null || cat runs/sft_text/watch.json)
echo "$address" | sed 's/token=.*/token=…/'
wait
loongforge top runs/sft_text --once
