# All mistakes in a config at once, with line and suggestion
cat > wrong.yaml <<'Y'
run: { name: ../../evil }
model: { load: no-such-folder }
data:
  train: [{ path: missing.jsonl }]
  pack: { max_token: 4096 }
train: { global_batch: 32, learning_rate: 1e-5, steps: ten }
Y
! loongforge check wrong.yaml
! loongforge run wrong.yaml
! loongforge run "$SOURCES/configs/sft_text.yaml" --tensor-model-parallel-size 2
! loongforge rum
test ! -e runs
