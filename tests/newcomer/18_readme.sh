# What the README says, and whether its config and commands are right
cp -r "$SOURCES/configs" .
# What, for whom and why come first, then figures and a picture.
sed -n '1,/^## Measured/p' "$SOURCES/README.md" | head -40
grep -nE '^## |^!\[' "$SOURCES/README.md"
# Its config, with a model of this machine in the place of the hub's.
sed -n '/^```yaml/,/^```/p' "$SOURCES/README.md" | grep -v '^```' > my.yaml
loongforge run configs/sft_text.yaml train.steps=2 train.warmup_steps=1 run.name=base > /dev/null 2>&1
cp configs/samples/chat.jsonl my.jsonl
cp configs/samples/chat.jsonl held_out.jsonl
loongforge check my.yaml model.load=runs/base/checkpoints/step-00000002 train.global_batch_size=8 train.warmup_steps=2
# Each command that it names has a help text.
sed -n 's/^\$ loongforge \([a-z-]*\).*/\1/p' "$SOURCES/README.md" | sort -u | while read -r command; do
  loongforge $command --help > help.txt
  printf '%-12s %s\n' "$command" "$(head -1 help.txt)"
done
