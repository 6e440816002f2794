# Help, completions, man pages, editor schema, where values come from
cp -r "$SOURCES/configs" .
loongforge --help
loongforge help data pack
for shell in bash zsh fish; do loongforge completions $shell | wc -l; done
loongforge completions --man man
ls man | wc -l
loongforge schema > schema.json
python3 -c "import json; print(len(json.load(open('schema.json'))['\$defs']), 'types')"
loongforge check configs/sft_text.yaml --show-origin train.lr=2e-3 | grep -E "^(run.dir|train.lr|data.pack.max_tokens) "
