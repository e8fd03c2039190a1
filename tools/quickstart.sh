#!/usr/bin/env bash
# Builds zero3 and trains a small Llama on a real text with ZeRO stage 3: as one rank, as two in one process, and as two
# processes under mpirun, which give the same bits. Installs missing packages (Debian, Ubuntu); everything else stays under build/.
#   tools/quickstart.sh [TEXT]        TEXT: a plain text file of at least 100 KB; default: the King James Bible
set -euo pipefail
text=${1:+$(realpath -- "$1")}
cd "$(dirname "$0")/.."
source tools/packages.sh

install_missing "${build_packages[@]}" bible-kjv
mkdir -p build/quickstart
echo "Building (a few minutes the first time)"
log=build/quickstart/build.log
cmake --preset release >$log 2>&1 || { cat $log >&2; exit 1; }
cmake --build --preset release --target zero3_program >$log 2>&1 || { cat $log >&2; exit 1; }
zero3=build/release/tools/zero3/zero3

out=build/quickstart
if [ -z "$text" ]; then
  text=$out/bible.txt
  bible -f 'Gen1:1-Rev22:21' >$text
fi

# A step is two micro-batches of 4 sequences in all runs: one rank takes them in turn, two ranks take one each.
steps=100
launcher=()
train() {
  "${launcher[@]}" $zero3 train --model tiny --data "$text" --steps $steps --batch 4 --seq 256 --lr 2e-3 --warmup 20 --schedule constant \
    --eval-every 50 --threads 1 "$@"
}
show() {  # On a terminal the program shows its progress; its JSON lines go to the file alone.
  local metrics=$1
  shift
  if [ -t 1 ]; then train --metrics "$metrics" "$@"; else train "$@" >"$metrics"; fi
}
field() { sed -nE "s/.*\"$1\":\"?([^,}\"]*).*/\1/p" "$2" | tail -n 1; }
total() { sed -nE "s/.*\"$1\":\{([^}]*)\}.*/\1/p" "$2" | tr ',' '\n' | awk -F: '{sum += $2} END {printf "%.1f MiB", sum / 1048576}'; }
tag() { sed -nE "s/.*\"peak_bytes\":\{[^}]*\"$1\":([0-9]+).*/\1/p" "$2" | awk '{printf "%.1f MiB", $1 / 1048576}'; }
losses() { sed -nE 's/.*"step":([0-9]+),"loss":([^,]*).*/\1 \2/p' "$1"; }

echo
echo "One rank, $(wc -c <"$text") bytes of text, $steps steps"
show $out/one.jsonl --accumulate 2
echo
echo "Two ranks in one process, the same steps"
show $out/two.jsonl --comm local --ranks 2
echo
echo "Two processes under mpirun, the same steps (JSON lines, in $out/mpi.jsonl)"
launcher=(mpirun --oversubscribe --bind-to none -n 2)
[ "$(id -u)" -ne 0 ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
train >$out/mpi.jsonl

first=$(losses $out/one.jsonl | head -n 1 | cut -d' ' -f2)
same() {  # Whether two runs went the same way.
  [ "$(losses "$1")" = "$(losses "$2")" ] && [ "$(field val_loss "$1")" = "$(field val_loss "$2")" ] &&
    [ "$(field weights_checksum "$1")" = "$(field weights_checksum "$2")" ]
}
if same $out/one.jsonl $out/two.jsonl && same $out/one.jsonl $out/mpi.jsonl; then
  agree="yes: all $steps losses, the validation loss, and the weights (checksum $(field weights_checksum $out/one.jsonl))"
else
  agree="NO"
fi
cat <<END

What you have just seen
  Learning       loss $(printf %.2f "$first") nats a byte at the first step; $(printf %.2f "$(field val_loss $out/one.jsonl)") on text that was kept aside at the last.
  Memory         planned $(total planned_bytes $out/one.jsonl) before the first allocation, at its peak $(total peak_bytes $out/one.jsonl): one rank.
                 planned $(total planned_bytes $out/two.jsonl), at its peak $(total peak_bytes $out/two.jsonl): each of two ranks.
  Speed          $(field tokens_per_s $out/one.jsonl) tokens/s as one rank of one thread, $(field tokens_per_s $out/two.jsonl) as two in one process, $(field tokens_per_s $out/mpi.jsonl) under mpirun.
  Sharding       weights $(tag shards $out/one.jsonl) and optimizer states $(tag optimizer $out/one.jsonl) on one rank;
                 weights $(tag shards $out/two.jsonl) and optimizer states $(tag optimizer $out/two.jsonl) on each of two.
  Same bits      $agree.
Next: $zero3 train --help; docs/embedding.md puts the runtime under a trainer of your own.
END
[ "$agree" != NO ]
