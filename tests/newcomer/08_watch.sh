# The page, `top` and Prometheus during and after a run
cp -r "$SOURCES/configs" .
loongforge run configs/sft_text.yaml train.steps=1000 watch.listen=127.0.0.1:47123 > log 2>&1 &
until [ -s runs/sft_text/watch.json ] && [ -s runs/sft_text/metrics.jsonl ]; do sleep 0.2; done
# `top` in a terminal of 80 columns, left with `q`.
cat > terminal.py <<'PY'
import fcntl, os, pty, re, struct, sys, termios, time
pid, terminal = pty.fork()
if pid == 0:
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    os.execvp(sys.argv[1], sys.argv[1:])
time.sleep(1.5)
os.write(terminal, b"q")
seen = b""
try:
    while piece := os.read(terminal, 65536):
        seen += piece
except OSError:
    pass
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
screens = [screen for screen in re.split(r"\x1b\[H|\x1b\[2J", seen.decode()) if "actor" in screen]
plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screens[0]).replace("\r", "").rstrip()
print(re.sub("token=.*", "token=…", plain))
print("longest line:", max(map(len, plain.splitlines())), "- colors:", "\x1b[3" in seen.decode(), "- exit code:", code)
PY
python3 terminal.py loongforge top runs/sft_text
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
loongforge run configs/sft_text.yaml train.steps=1100 watch.listen=127.0.0.1:47123 --resume > log 2>&1 &
until curl -s -H "Authorization: Bearer $token" http://127.0.0.1:47123/history.json > history.json; do sleep 0.1; done
python3 -c "import json; steps = json.load(open('history.json'))['step']; print('first step of the history:', steps[0], 'of', len(steps))"
wait
