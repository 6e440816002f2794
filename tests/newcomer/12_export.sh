# Adapters, merging, GGUF, verification
cp -r "$SOURCES/configs" .
loongforge run configs/sft_text.yaml > /dev/null 2>&1
loongforge run configs/lora_text.yaml model.load=runs/sft_text/checkpoints/step-00000040 model.weights=load '~model.config' \
  '~model.tokenizer' checkpoint.merge_lora=false > /dev/null 2>&1
ls runs/lora_text/checkpoints/step-00000040
loongforge checkpoint export-hf runs/lora_text merged
loongforge checkpoint verify merged
loongforge checkpoint diff runs/sft_text/checkpoints/step-00000040 merged | sed -n 1,12p || true
loongforge checkpoint inspect merged | sed -n 1,12p
# llama.cpp knows the tokenizers of published models; that of the samples is none: a tiny Qwen2 has one.
cp -r "$SOURCES/src/checkpoint/gguf/goldens/qwen2" published
loongforge run configs/sft_text.yaml run.name=qwen2 model.load=published model.weights=load '~model.config' '~model.tokenizer' \
  train.steps=4 train.warmup_steps=1 > /dev/null 2>&1
loongforge checkpoint export-gguf runs/qwen2 qwen2.gguf --dtype q8_0
