# Job scripts for Slurm, Kubernetes, ssh
cp -r "$SOURCES/configs" .
loongforge launch configs/sft_text.yaml --on slurm --gpus-per-node 8 --insecure-allow-plaintext pools.foundation.replicas=8 | sed -n 1,40p
loongforge launch configs/sft_text.yaml --on k8s --claim data --image registry.example/loongforge:1 --insecure-allow-plaintext | sed -n 1,30p
