# Data: inspect, count, verify, convert, pack
cp -r "$SOURCES/configs" .
loongforge data inspect configs/sft_text.yaml --samples 1
loongforge data stats configs/samples/chat.jsonl
printf '{"messages": [{"role": "user"}]}\nnot json\n' > bad.jsonl
loongforge data verify bad.jsonl --quarantine list.jsonl || true
loongforge data convert --to webdataset configs/samples/chat.jsonl --out shards
loongforge data pack configs/sft_text.yaml --out packs
