# The page, `top` and Prometheus during and after a run
cp -r "$SOURCES/configs" .
loongforge run configs/sft_text.yaml train.steps=400 watch.listen=127.0.0.1:47123 > log 2>&1 &
until [ -s runs/sft_text/watch.json ] && [ -s runs/sft_text/metrics.jsonl ]; do sleep 0.2; done
COLUMNS=80 loongforge top runs/sft_text --once
token=$(python3 -c "import json; print(json.load(open('runs/sft_text/watch.json'))['token'])")
curl -s -o page.html -w 'page: status %{http_code}, %{size_download} bytes of %{content_type}\n' "http://127.0.0.1:47123/?token=$token"
curl -s -o /dev/null -w 'without the token: status %{http_code}\n' http://127.0.0.1:47123/
curl -s -H "Authorization: Bearer $token" http://127.0.0.1:47123/metrics > metrics
grep -c '^loongforge_' metrics
grep -E '^loongforge_(step|loss|tokens_per_second|goodput_ratio|resident_memory_bytes)\{' metrics
wait
loongforge top runs/sft_text --once
# The same page from the files of the run that has ended; without a server.
loongforge report runs/sft_text -o page.html
# Restarted, it has the curves from the first step on.
loongforge run configs/sft_text.yaml train.steps=600 watch.listen=127.0.0.1:47123 --resume > log 2>&1 &
until curl -s -H "Authorization: Bearer $token" http://127.0.0.1:47123/history.json > history.json; do sleep 0.1; done
python3 -c "import json; steps = json.load(open('history.json'))['step']; print('first step of the history:', steps[0], 'of', len(steps))"
wait
