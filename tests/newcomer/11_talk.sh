# Generate, chat and serve
cp -r "$SOURCES/configs" .
loongforge run configs/sft_text.yaml > /dev/null 2>&1
loongforge generate runs/sft_text --prompt "Hello"
echo "7 + 7?" | loongforge generate runs/sft_text --prompt -
printf '{"id": "a", "prompt": "Hello"}\n{"messages": [{"role": "user", "content": "7 + 7?"}]}\n' > prompts.jsonl
loongforge generate runs/sft_text --prompts prompts.jsonl -o answers.jsonl --batch 2
cat answers.jsonl
printf 'Hello\nAgain\n' | loongforge chat runs/sft_text
loongforge serve runs/sft_text --port 47124 > serve.log 2>&1 &
server=$!
until curl -sf http://127.0.0.1:47124/v1/models; do sleep 0.2; done
echo
curl -s http://127.0.0.1:47124/v1/chat/completions -H 'Content-Type: application/json' \
  -d '{"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16}'
echo
curl -sN http://127.0.0.1:47124/v1/chat/completions -H 'Content-Type: application/json' \
  -d '{"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16, "stream": true}'
kill $server
wait $server || true
