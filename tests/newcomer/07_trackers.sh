# TensorBoard, W&B and MLflow files, a report, a comparison
cp -r "$SOURCES/configs" .
loongforge run configs/sft_text.yaml train.steps=20 run.name=a log.wandb={} log.mlflow={} \
  eval.path=configs/samples/chat.jsonl eval.every_steps=10 >/dev/null 2>&1
loongforge run configs/sft_text.yaml train.steps=20 run.name=b train.lr=1e-3 >/dev/null 2>&1
find runs/a/tensorboard runs/a/wandb runs/a/mlruns -type f ! -path '*/metrics/*' ! -path '*/params/*' ! -path '*/tags/*' | sort
# Names of TensorBoard's curves.
cat runs/a/tensorboard/* | grep -aoE '(train|eval|data|speed|busy|memory)/[a-z_/]+' | sort -u | xargs
loongforge compare runs/a runs/b -o losses.png
loongforge report runs/a -o a.html
ls -l losses.png a.html | awk '{ print $5, $9 }'
