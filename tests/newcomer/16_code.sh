# Compose actors in code
ls "$SOURCES"/examples
wc -l < "$SOURCES/examples/three_pools.rs"
sed -n '/fn main/,$p' "$SOURCES/examples/three_pools.rs"
