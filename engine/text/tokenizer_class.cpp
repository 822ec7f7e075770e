#include "tokenizer_class.h"

namespace redco::text {

namespace {

using Class = TokenizerClass;
using Tokens = std::map<std::string, std::string>;

const std::map<std::string, Class>& classes() {
  static const Tokens of_bert = {
      {"unk", "[UNK]"}, {"sep", "[SEP]"}, {"pad", "[PAD]"}, {"cls", "[CLS]"}, {"mask", "[MASK]"}};
  static const Tokens of_deberta = [] {
    Tokens tokens = of_bert;
    tokens["bos"] = "[CLS]";
    tokens["eos"] = "[SEP]";
    return tokens;
  }();
  static const Tokens of_bart = {{"bos", "<s>"},    {"eos", "</s>"},  {"sep", "</s>"},
                                 {"cls", "<s>"},    {"unk", "<unk>"}, {"pad", "<pad>"},
                                 {"mask", "<mask>"}};
  static const Tokens of_gpt2 = {
      {"unk", "<|endoftext|>"}, {"bos", "<|endoftext|>"}, {"eos", "<|endoftext|>"}};
  static const Tokens of_t5 = {{"eos", "</s>"}, {"unk", "<unk>"}, {"pad", "<pad>"}};

  static const Class bert{.special_tokens = of_bert};
  static const Class bart{.special_tokens = of_bart,
                          .mask = Class::Mask::after_space_normalized,
                          .sets_post_processor = true};
  static const Class mbart{.special_tokens = of_bart, .mask = Class::Mask::after_space};
  static const Class gpt2{.special_tokens = of_gpt2};
  static const Class t5{.special_tokens = of_t5};
  static const std::map<std::string, Class> classes = {
      {"BartTokenizer", bart},
      {"BertTokenizer", bert},
      {"BloomTokenizer",
       {.special_tokens = {{"unk", "<unk>"}, {"bos", "<s>"}, {"eos", "</s>"}, {"pad", "<pad>"}},
        .sets_sequences = true}},
      {"CLIPTokenizer",
       {.special_tokens = {{"unk", "<|endoftext|>"},
                           {"bos", "<|startoftext|>"},
                           {"eos", "<|endoftext|>"},
                           {"pad", "<|endoftext|>"}}}},
      {"CodeGenTokenizer", gpt2},
      {"CohereTokenizer",
       {.special_tokens = {{"unk", "<UNK>"},
                           {"bos", "<BOS_TOKEN>"},
                           {"eos", "<|END_OF_TURN_TOKEN|>"}},
        .pads_left = true,
        .sets_sequences = true}},
      {"DebertaTokenizer", {.special_tokens = of_deberta, .mask = Class::Mask::after_space}},
      {"DebertaV2Tokenizer", {.special_tokens = of_deberta}},
      {"DistilBertTokenizer", bert},
      {"ElectraTokenizer", bert},
      {"GPT2Tokenizer", gpt2},
      {"GPTNeoXTokenizer", gpt2},
      {"GemmaTokenizer",
       {.special_tokens = {{"unk", "<unk>"}, {"bos", "<bos>"}, {"eos", "<eos>"}, {"pad", "<pad>"}},
        .pads_left = true}},
      {"LEDTokenizer", bart},
      {"LlamaTokenizer",
       {.special_tokens = {{"unk", "<unk>"}, {"bos", "<s>"}, {"eos", "</s>"}}, .pads_left = true}},
      {"LongformerTokenizer", bart},
      {"MBartTokenizer", mbart},
      {"MT5Tokenizer", t5},
      {"PegasusTokenizer",
       {.special_tokens =
            {{"pad", "<pad>"}, {"eos", "</s>"}, {"unk", "<unk>"}, {"mask", "<mask_2>"}}}},
      {"Qwen2Tokenizer",
       {.special_tokens = {{"unk", "<|endoftext|>"},
                           {"eos", "<|endoftext|>"},
                           {"pad", "<|endoftext|>"}}}},
      {"RobertaTokenizer", bart},
      {"T5Tokenizer", t5},
      {"WhisperTokenizer", gpt2},
      {"XLMRobertaTokenizer", mbart},
  };
  return classes;
}

}  // namespace

const TokenizerClass& tokenizer_class(const std::string& name) {
  static const TokenizerClass general;
  auto found = classes().find(name);
  return found == classes().end() ? general : found->second;
}

}  // namespace redco::text
