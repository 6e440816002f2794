# Compose actors in code
# An example with two encoders of its own and three pools.
example=$SOURCES/target/debug/examples/three_pools
[ -x "$example" ] || { echo "not built: run \`cargo build --example three_pools\` first"; exit 77; }
wc -l < "$SOURCES/examples/three_pools.rs"
sed -n '/fn main/,$p' "$SOURCES/examples/three_pools.rs"
cp "$SOURCES/examples/three_pools.yaml" .
loongforge data heard-and-seen --out runs/three_pools/data > /dev/null
"$example" check three_pools.yaml
"$example" run three_pools.yaml --processes train.steps=10
"$example" evaluate runs/three_pools runs/three_pools/data/held_out.jsonl --limit 20
"$example" launch three_pools.yaml --on slurm --gpus-per-node 8 --insecure-allow-plaintext | grep -c -- '--pool\|--role'
