// A chat template, for a conversation with tools.
#include "memory_file.h"

#include <redco/error.h>
#include <redco/tokenizer.h>

using redco::Json;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Json messages = Json::List{
      Json::Object{{"role", "system"}, {"content", "Be brief."}},
      Json::Object{{"role", "user"}, {"content", " na\u00efve, <b> "}, {"n", 3}},
      Json::Object{{"role", "assistant"}, {"content", {}}, {"parts", Json::List{1, 2.5, "x"}}}};
  static const Json tool =
      Json::Object{{"name", "add"}, {"parameters", Json::Object{{"a", "int"}}}};
  redco::TokenizerParts parts;
  parts.tokens = {"<s>", "</s>"};
  parts.bos_id = 0;
  parts.eos_id = 1;
  parts.chat_template = text_of(data, size);
  try {
    redco::Tokenizer::from_parts("", parts).apply_chat_template(messages, true,
                                                                {{"tools", Json::List{tool}}});
  } catch (const redco::Error&) {
  }
  return 0;
}
