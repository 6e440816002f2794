# Documentation, community files
cd "$SOURCES"
ls CONTRIBUTING.md CHANGELOG.md CITATION.cff LICENSE .github .github/*
ls docs docs/tutorials | wc -l
grep -c '^## LF' docs/errors.md
