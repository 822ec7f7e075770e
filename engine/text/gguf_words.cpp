// The regular expressions for words, by llama.cpp's names of pre-tokenizers. llama.cpp changes some
// expressions because it lacks Unicode's classes; the expressions here are then those of the
// models' tokenizer.json.
#include "gguf_words.h"

#include "../io/strict_json.h"
#include "pre_tokenizers.h"

#include <redco/error.h>

#include <map>
#include <string_view>
#include <utility>

namespace redco::text {

namespace {

const std::string contractions = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
const std::string letters = "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|";
const std::string spaces = "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const std::string rest = "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" + spaces;

// LLaMA 3's words. `numbers` matches the digits of a number, such as "\\p{N}{1,3}".
std::string with_numbers(const std::string& numbers) {
  return contractions + "|" + letters + numbers + rest;
}

// GPT-4o's words: upper case, then lower case. `end` may follow them.
std::string by_case(const std::string& end, const std::string& numbers) {
  const std::string upper = "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]";
  const std::string lower = "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]";
  const std::string before = "[^\\r\\n\\p{L}\\p{N}]?";
  return before + upper + "*" + lower + "+" + end + "|" + before + upper + "+" + lower + "*" + end +
         "|" + numbers + "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" + spaces;
}

// DeepSeek-V3's words, after numbers and Chinese characters.
const std::string deepseek_words =
    "[!\"#$%&'()*+,\\-./"
    ":;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
    " ?[\\p{P}\\p{S}]+";
const std::string chinese = "[一-龥぀-ゟ゠-ヿ]+";

// DeepSeek's first words: a run of letters that have upper and lower case.
const std::string cased_letters =
    "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽ"
    "ͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿ"
    "ᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼ"
    "ιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭ"
    "ℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇ"
    "Ꞌ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-"
    "𑣟"
    "𞤀-𞥃]+";

const std::string between_stops = " ?[^(\\s|.,!?…。，、।۔،)]+";

struct Entry {
  std::vector<const char*> names;
  GgufWords words;
};

std::vector<Entry> entries() {
  const std::string llama3 = with_numbers("\\p{N}{1,3}"), qwen2 = with_numbers("\\p{N}");
  const std::string three_digits = "\\p{N}{1,3}", gpt2 = gpt2_words;
  const std::string in_gpt4o = by_case(contractions + "?", three_digits);
  const bool ignore_merges = true, add_bos = true;
  return {
      {{"default"}, {{"[\\p{P}\\$\\+<=>\\^~\\|]+", gpt2, "\\p{N}+", "[0-9][0-9][0-9]"}}},
      {{"gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4",
        "jina-es", "jina-de", "jina-v1-en", "jina-v2-es", "jina-v2-de", "jina-v2-code",
        "roberta-bpe", "gigachat", "a.x-4.0", "mellum", "modern-bert"},
       {{gpt2}}},
      {{"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b",
        "mellum2"},
       {{"\\p{N}", gpt2}}},
      {{"falcon"}, {{"[\\p{P}\\$\\+<=>\\^~\\|`]+", gpt2, "[0-9][0-9][0-9]"}}},
      {{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
        "jina-v5-nano"},
       {{llama3}, ignore_merges, add_bos}},
      {{"dbrx", "smaug-bpe", "chatglm-bpe"}, {{llama3}}},
      {{"glm4", "glm5"}, {{llama3}, ignore_merges}},
      {{"minicpm5"}, {{three_digits, with_numbers("\\p{N}+")}, ignore_merges}},
      {{"jais-2"},
       {{contractions + "|" + letters + three_digits +
         "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s{512}(?!\\S)|\\s{256}(?!\\S)|"
         "\\s{128}(?!\\S)|\\s{64}(?!\\S)|\\s{32}(?!\\S)|\\s{16}(?!\\S)|\\s{8}(?!\\S)|\\s{4}(?!\\S)|"
         "\\s{1,2}(?!\\S)|\\s{1}"}}},
      {{"qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan",
        "solar-open", "grok-2"},
       {{qwen2}}},
      {{"qwen35"},
       {{contractions +
         "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}|"
         " ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" +
         spaces}}},
      {{"ufakzeka"}, {{letters + "\\p{N}" + rest}}},
      {{"laguna"}, {{"[^\\n]+|[\\n]+", qwen2}}},
      {{"seed-coder"},
       {{contractions + "|" + letters + "\\p{N}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|" + spaces}}},
      {{"bailingmoe", "bailingmoe2", "llada-moe"},
       {{"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}|"
         " ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"}}},
      {{"exaone-moe"},
       {{contractions + "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}|"
                        " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"}}},
      {{"tekken"}, {{by_case("", "\\p{N}")}, ignore_merges, add_bos}},
      {{"gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"}, {{in_gpt4o}}},
      {{"granite-embed-multi-97m"}, {{in_gpt4o}, ignore_merges}},
      {{"tiny_aya", "cohere2moe"}, {{"\\d{1,3}(?=(?:\\d{3})*\\b)", in_gpt4o}}},
      {{"youtu"},
       {{"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-"
         "ゟ゠-"
         "ヿ]"
         "+",
         by_case(contractions + "?", "\\p{N}")},
        ignore_merges}},
      {{"deepseek-llm"},
       {{"[\\r\\n]", cased_letters, "\\s?[!-/:-~！-／：-～‘-‟　-。]+", "\\s+$",
         "[一-龥ࠀ-一가-퟿]+", "\\p{N}+"}}},
      {{"deepseek-coder"},
       {{"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", "[一-龥ࠀ-一가-퟿]+", "\\p{N}"}}},
      {{"deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"},
       {{three_digits, chinese, deepseek_words + "[\\r\\n]*|" + spaces}}},
      {{"spark2_5"},
       {{three_digits, chinese, deepseek_words + "|[\\r\\n]|\\s+(?!\\S)|\\s+", "\\p{N}"}}},
      {{"poro-chat", "bloom", "gpt3-finnish"}, {{between_stops}}},
      {{"viking"}, {{between_stops, "\\p{N}"}}},
      {{"chameleon"},
       {{"<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", "([\\t\\n]|    |  )", "\\p{N}",
         "[\\p{P}!-/:-@\\[-`{-~]", gpt2},
        false,
        add_bos}},
  };
}

}  // namespace

const GgufWords& gguf_words(const std::string& where, const std::string& name) {
  static const std::map<std::string_view, GgufWords> words = [] {
    std::map<std::string_view, GgufWords> by_name;
    for (const Entry& entry : entries())
      for (const char* known : entry.names) by_name.emplace(known, entry.words);
    return by_name;
  }();
  auto found = words.find(name);
  if (found == words.end()) {
    std::string names;
    for (const auto& [known, unused] : words)
      names += (names.empty() ? "" : ", ") + std::string(known);
    fail(where, "the pre-tokenizer ", io::in_quotes(name), " is not supported; supported are ",
         names);
  }
  return found->second;
}

std::vector<std::pair<std::string, GgufWords>> all_gguf_words() {
  std::vector<std::pair<std::string, GgufWords>> all;
  for (Entry& entry : entries()) all.emplace_back(entry.names.front(), std::move(entry.words));
  return all;
}

}  // namespace redco::text
