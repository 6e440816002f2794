# Help, completions, man pages, editor schema
loongforge --help
loongforge help data pack
loongforge completions bash | wc -l
loongforge completions --man man
ls man | wc -l
loongforge schema > schema.json
python3 -c "import json; print(len(json.load(open('schema.json'))['\$defs']), 'types')"
