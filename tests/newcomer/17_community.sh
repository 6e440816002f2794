# Documentation, community files
cd "$SOURCES"
ls CONTRIBUTING.md CHANGELOG.md CITATION.cff LICENSE .github .github/*
grep -i 'code of conduct\|contributor covenant' CONTRIBUTING.md
# The sections of the site, and how many pages each has besides those of evidence.
awk '/^## /{title=$0} /^- /{count[title]++} END{for (title in count) print title ": " count[title]}' docs/SUMMARY.md | sort
# Error codes that have a page.
ls docs/errors | wc -l
