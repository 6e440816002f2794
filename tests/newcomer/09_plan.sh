# Memory and time of a run, before it starts
cp -r "$SOURCES/configs" .
loongforge plan configs/sft_text.yaml
loongforge plan configs/sft_text.yaml --simulate --device H100 --steps 20
loongforge models | sed -n 1,12p
