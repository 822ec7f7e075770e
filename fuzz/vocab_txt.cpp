// BERT's vocab.txt.
#include "memory_file.h"
#include "tokens.h"

#include <redco/error.h>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    use(redco::Tokenizer::from_vocab_txt("", text_of(data, size)));
  } catch (const redco::Error&) {
  }
  return 0;
}
