#!/bin/sh
# Makes the program of the Dockerfile's images, `loongforge` in the root of the sources, and tries it in another folder.
# `image.sh PROGRAM` takes a program that is there; without it, libtorch is fetched and the program built.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
if [ $# -eq 0 ]; then
  cargo xtask setup
  cargo build --release --locked --features loongforge-core/av1-asm
  set -- target/release/loongforge
fi
strip -o loongforge "$1"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"$root/loongforge" --version --verbose
ln -s "$root/configs" configs
"$root/loongforge" run configs/sft_text.yaml train.steps=2 train.warmup_steps=1
