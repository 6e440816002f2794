# Common methods: DPO, QLoRA, Muon
cp -r "$SOURCES/configs" .
loongforge run configs/sft_text.yaml > /dev/null 2>&1
loongforge run configs/preference_text.yaml
loongforge run configs/lora_text.yaml run.name=qlora model.load=runs/sft_text/checkpoints/step-00000040 model.weights=load "~model.config" \
  "~model.tokenizer" checkpoint.merge_lora=false model.foundation.frozen_precision=nf4
loongforge run configs/sft_text.yaml run.name=muon train.optimizer.type=muon train.steps=10
