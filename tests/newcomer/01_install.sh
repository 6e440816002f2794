# Install the wheel into an empty environment
# `cargo xtask wheel` makes the wheel; pip takes torch from the package registry.
wheel=$(ls "$SOURCES"/target/wheel/loongforge-*.whl 2>/dev/null) || { echo "no wheel: run \`cargo xtask wheel\` first"; exit 77; }
python3 -m venv venv
venv/bin/pip install --quiet "$wheel" || { echo "pip cannot install torch here"; exit 77; }
venv/bin/loongforge --version --verbose
venv/bin/loongforge doctor || true
