#pragma once

#include <redco/error.h>
#include <redco/tokenizer.h>

#include <numeric>

/// Writes texts as tokens and back, and some tokens that no text gave.
inline void use(const redco::Tokenizer& tokenizer) {
  redco::EncodeOptions options;
  options.with_tokens = options.with_offsets = true;
  redco::DecodeOptions plain;
  plain.skip_special_tokens = true;
  for (const char* text :
       {"", "Hello hello  world's 12,345\n\t(abc) <s>x</s> ",
        "na\u00efve \u6771\u4eac\uff21 \u2581e\u0301 \U0001f600\r\n\xff\xe2\x96"}) {
    tokenizer.decode(tokenizer.encode(text, options).ids);
    tokenizer.decode(tokenizer.encode("a b", text, options).ids, plain);
  }
  options.max_length = 3;
  tokenizer.encode("some words", "and more", options);
  options.max_length = 12;
  options.with_overflow = true;
  options.truncation = redco::Truncation::only_second;
  try {
    tokenizer.encode("some", "words and some more of them and more", options);
  } catch (const redco::Error&) {  // the first text alone is longer
  }
  std::vector<int64_t> first(64);
  std::iota(first.begin(), first.end(), 0);
  tokenizer.decode(first);
}
