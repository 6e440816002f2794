# Progress, held-out loss while training, curves, best checkpoint
cp -r "$SOURCES/configs" .
loongforge run configs/sft_text.yaml eval.path=configs/samples/chat.jsonl eval.every_steps=10 checkpoint.every_steps=10
tail -2 runs/sft_text/metrics.jsonl
head -c 600 runs/sft_text/eval.jsonl
ls runs/sft_text
# A run that is stopped has its curves as well.
loongforge run configs/sft_text.yaml run.name=stopped train.steps=100000 > /dev/null 2>&1 &
until [ -s runs/stopped/metrics.jsonl ]; do sleep 0.2; done
kill $!
wait $! || echo "exit code $?"
ls -l runs/*/loss.png | awk '{ print $5, $9 }'
