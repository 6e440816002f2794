# The words of the README, the documentation and the help
# Phrases that a reviewer stopped at, and how often each is there today; and the words of the field.
loongforge completions --man man > /dev/null
count() { { grep -rioh -- "$1" "$SOURCES/README.md" "$SOURCES"/docs/*.md "$SOURCES/docs/tutorials" man || true; } | wc -l; }
for phrase in "learnt" "mend the data" "no folder here" "gone over" "dearest" "the rooms" "rule of the house" "begin anew" \
  "be one process of a run" "what they say themselves" "told by their contents" "no linear map" "let go" "are not of the model" \
  "waits for mail" "members that lie" "heeds" "called otherwise" "told in" "as it stands" "samples follow one another"; do
  printf '%-28s %s\n' "$phrase" "$(count "$phrase")"
done
echo
for phrase in "loss mask" "epochs" "tensor parallel" "gradient norm" "checkpoint" "sampling temperature" "timeout" "flow-control window"; do
  printf '%-28s %s\n' "$phrase" "$(count "$phrase")"
done
