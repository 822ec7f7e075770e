// A chat template, for a conversation with tools.
#include "memory_file.h"

#include <redco/error.h>
#include <redco/tokenizer.h>

using redco::Tree;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Tree messages = Tree::List{
      Tree::Dict{{"role", "system"}, {"content", "Be brief."}},
      Tree::Dict{{"role", "user"}, {"content", " na\u00efve, <b> "}, {"n", 3}},
      Tree::Dict{{"role", "assistant"}, {"content", Tree()}, {"parts", Tree::List{1, 2.5, "x"}}}};
  static const Tree tool = Tree::Dict{{"name", "add"}, {"parameters", Tree::Dict{{"a", "int"}}}};
  redco::TokenizerParts parts;
  parts.tokens = {"<s>", "</s>"};
  parts.bos_id = 0;
  parts.eos_id = 1;
  parts.chat_template = text_of(data, size);
  try {
    redco::Tokenizer::from_parts("", parts).apply_chat_template(messages, true,
                                                                {{"tools", Tree::List{tool}}});
  } catch (const redco::Error&) {
  }
  return 0;
}
