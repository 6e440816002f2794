# Translate configs of LLaMA-Factory, TRL and Megatron
cat > lora.yaml <<'Y'
model_name_or_path: Qwen/Qwen3-0.6B
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8
dataset: identity
template: qwen3
cutoff_len: 2048
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
Y
loongforge import lora.yaml
loongforge import -- trl sft --model_name_or_path Qwen/Qwen3-0.6B --dataset_name trl-lib/Capybara --packing
