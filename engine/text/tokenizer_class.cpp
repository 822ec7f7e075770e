#include "tokenizer_class.h"

#include <algorithm>
#include <utility>

namespace redco::text {

namespace {

using Class = TokenizerClass;
using Tokens = std::map<std::string, std::string>;

using Strings = std::vector<std::string>;

Strings numbered(const char* begin, int64_t first, int64_t last) {
  Strings tokens;
  for (int64_t i = first; i < last; ++i) tokens.push_back(begin + std::to_string(i) + ">");
  return tokens;
}

// T5's sentinels.
Strings with_extra_ids(Strings given, int64_t count) {
  for (const std::string& token : given)
    if (token.find("<extra_id_") != token.npos) return given;
  for (std::string& token : numbered("<extra_id_", 0, count)) given.push_back(std::move(token));
  return given;
}

// The mask of sentences, and tokens that Pegasus has used in pretraining only.
Strings with_unused(Strings given, int64_t offset) {
  bool is_new = given.empty();
  if (std::find(given.begin(), given.end(), "<mask_1>") == given.end())
    given.insert(given.begin(), "<mask_1>");
  int64_t first = is_new ? 2 : int64_t(given.size()), last = is_new ? offset : offset - 1;
  for (std::string& token : numbered("<unk_", first, last)) given.push_back(std::move(token));
  return given;
}

constexpr Class::Series extra_ids{"extra_ids", 100, with_extra_ids};
constexpr Class::Series unused{"offset", 103, with_unused};

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
  static const Class roberta{
      .special_tokens = of_bart, .mask = Class::Mask::after_space, .sets_post_processor = true};
  static const Class mbart{.special_tokens = of_bart, .mask = Class::Mask::after_space};
  static const Class gpt2{.special_tokens = of_gpt2};
  static const Class t5{.special_tokens = of_t5, .series = &extra_ids, .keeps_prefix_space = true};
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
       {.special_tokens = {{"unk", "<unk>"}, {"bos", "<s>"}, {"eos", "</s>"}},
        .pads_left = true,
        .keeps_prefix_space = true}},
      {"LongformerTokenizer", roberta},
      {"MBartTokenizer", mbart},
      {"MT5Tokenizer", t5},
      {"PegasusTokenizer",
       {.special_tokens =
            {{"pad", "<pad>"}, {"eos", "</s>"}, {"unk", "<unk>"}, {"mask", "<mask_2>"}},
        .series = &unused}},
      {"Qwen2Tokenizer",
       {.special_tokens = {{"unk", "<|endoftext|>"},
                           {"eos", "<|endoftext|>"},
                           {"pad", "<|endoftext|>"}},
        .plain_roles = {"bos", "eos", "unk", "pad"}}},
      {"RobertaTokenizer", roberta},
      {"T5Tokenizer", t5},
      {"WhisperTokenizer", {.special_tokens = of_gpt2, .plain_roles = {"bos", "eos", "unk"}}},
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

std::string tokenizer_class_of_model(const std::string& model_type) {
  static const std::map<std::string, const char*> classes = {
      {"bart", "Bart"},
      {"bert", "Bert"},
      {"bloom", "Bloom"},
      {"clip", "CLIP"},
      {"codegen", "CodeGen"},
      {"cohere", "Cohere"},
      {"deberta", "Deberta"},
      {"deberta-v2", "DebertaV2"},
      {"deepseek_v3", "Llama"},
      {"distilbert", "DistilBert"},
      {"electra", "Electra"},
      {"gemma", "Gemma"},
      {"gemma2", "Gemma"},
      {"gemma3_text", "Gemma"},
      {"gpt2", "GPT2"},
      {"gpt_neox", "GPTNeoX"},
      {"gptj", "GPT2"},
      {"granite", "GPT2"},
      {"led", "LED"},
      {"llama", "Llama"},
      {"longformer", "Longformer"},
      {"mbart", "MBart"},
      {"mistral", "Llama"},
      {"mixtral", "Llama"},
      {"mt5", "MT5"},
      {"olmo2", "GPTNeoX"},
      {"olmoe", "GPTNeoX"},
      {"opt", "GPT2"},
      {"pegasus", "Pegasus"},
      {"phi3", "Llama"},
      {"qwen2", "Qwen2"},
      {"qwen3", "Qwen2"},
      {"qwen3_moe", "Qwen2"},
      {"roberta", "Roberta"},
      {"siglip", "Siglip"},
      {"starcoder2", "GPT2"},
      {"t5", "T5"},
      {"umt5", "T5"},
      {"whisper", "Whisper"},
      {"xlm-roberta", "XLMRoberta"},
  };
  auto found = classes.find(model_type);
  return found == classes.end() ? "" : std::string(found->second) + "Tokenizer";
}

}  // namespace redco::text
