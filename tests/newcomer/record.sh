#!/usr/bin/env bash
# Runs the scripts beside it, each in an empty folder and for at most $LIMIT seconds, and writes docs/evidence/newcomer.md: commands, output, seconds.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export SOURCES=$(cd "$here/../.." && pwd)
out=$SOURCES/docs/evidence/newcomer.md
command -v loongforge >/dev/null || { echo "loongforge is not on the path"; exit 1; }
names=("$@")
[ ${#names[@]} -gt 0 ] || names=($(cd "$here" && ls [0-9]*.sh))
cpu=$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -1)
parts=$(mktemp -d)
failed=0
for name in "${names[@]}"; do
  folder=$parts/work; rm -rf "$folder"; mkdir -p "$folder"
  begin=$(date +%s.%N)
  code=0
  (cd "$folder" && timeout "${LIMIT:-300}" bash -euo pipefail "$here/$name") >"$parts/output" 2>&1 </dev/null || code=$?
  seconds=$(awk -v a="$begin" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f", b - a }')
  case $code in 0) verdict=ok ;; 77) verdict="not run" ;; *) verdict="FAILED with $code"; failed=1 ;; esac
  title=$(sed -n '1s/^# //p' "$here/$name")
  echo "$name: $verdict, $seconds s"
  echo "| [$title](#$(basename "$name" .sh)) | $verdict | $seconds |" >>"$parts/table"
  {
    echo; echo "## $(basename "$name" .sh)"; echo
    echo "$title: $verdict, $seconds s."; echo
    echo "<!-- needs: minutes -->"; echo '```bash'; sed '1d' "$here/$name"; echo '```'; echo
    # Lines of a run in progress end with a carriage return; the last one counts. Long output is cut in the middle.
    echo '```text'
    sed -e 's/.*\r\([^\r]\)/\1/; s/\x1b\[[0-9;?]*[a-zA-Z]//g; s/[[:space:]]*$//' -e "s#$folder#.#g; s#$SOURCES#\$SOURCES#g" "$parts/output" |
      LC_ALL=C.UTF-8 sed -E "s/^(.{160}).*/\1…/" | awk '{ line[NR] = $0 } END { for (i = 1; i <= NR; i++) if (NR <= 44 || i <= 22 || i > NR - 20) print line[i]; else if (i == 23) print "[…]" }'
    echo '```'
  } >>"$parts/sections"
done
{
  echo "# What a newcomer meets"; echo
  echo "Recorded on $(date +%F) at commit $(git -C "$SOURCES" rev-parse --short HEAD) by \`tests/newcomer/record.sh\`: each script in an empty folder, on"
  echo "$(nproc) cores of an ${cpu:-unknown processor}, \`$(loongforge --version)\`. Seconds are for the whole script on a machine that may have been running other programs."
  echo; echo "| what | verdict | seconds |"; echo "| --- | --- | --- |"; cat "$parts/table" "$parts/sections"
} >"$out"
rm -rf "$parts"
exit $failed
