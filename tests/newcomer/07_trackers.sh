# TensorBoard, W&B and MLflow files, a report, a comparison
cp -r "$SOURCES/configs" .
loongforge run configs/sft_text.yaml train.steps=20 run.name=a log.wandb={} log.mlflow={} >/dev/null 2>&1
loongforge run configs/sft_text.yaml train.steps=20 run.name=b train.lr=1e-3 >/dev/null 2>&1
find runs/a -newer configs -type f | sort | sed -n 1,40p
loongforge compare runs/a runs/b -o losses.png
loongforge report runs/a -o a.html
ls -l losses.png a.html | awk '{ print $5, $9 }'
