// Tokenizers against what `tokenizers` and `sentencepiece` give: the cases of tests/cases.
#include <redco/tokenizer.h>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace fs = std::filesystem;
using nlohmann::json;
using redco::Tokenizer;

namespace {

fs::path shipped_cases() { return fs::path(TESTS_FOLDER) / "cases"; }

// The cases that ship, and those of REDCO_CASES.
std::vector<fs::path> case_folders() {
  std::vector<fs::path> roots = {shipped_cases()}, folders;
  if (const char* more = std::getenv("REDCO_CASES"))
    roots.push_back(more);
  else
    MESSAGE("REDCO_CASES is not set: only the cases that ship are tested");
  for (const fs::path& root : roots)
    for (const auto& entry : fs::directory_iterator(root))
      if (fs::exists(entry.path() / "tokenizer_cases.json")) folders.push_back(entry.path());
  return folders;
}

json read_json(const fs::path& path) {
  std::ifstream file(path);
  REQUIRE_MESSAGE(file.is_open(), path.string());
  return json::parse(file);
}

redco::EncodeOptions plain() {
  redco::EncodeOptions options;
  options.add_special_tokens = false;
  options.with_tokens = true;
  return options;
}

using Ids = std::vector<int64_t>;
using Words = std::vector<std::string>;

// What `tokenizers` gives.
void check_case(const Tokenizer& tokenizer, const json& expected) {
  auto text = expected.at("text").get<std::string>();
  CAPTURE(text);
  CHECK(tokenizer.encode(text).ids == expected.at("ids").get<Ids>());
  auto encoding = tokenizer.encode(text, plain());
  CHECK(encoding.ids == expected.at("ids_plain").get<Ids>());
  CHECK(encoding.tokens == expected.at("tokens_plain").get<Words>());
  auto ids = expected.at("ids").get<Ids>();
  CHECK(tokenizer.decode(ids, {false, false}) == expected.at("decoded").get<std::string>());
  CHECK(tokenizer.decode(ids, {true, false}) ==
        expected.at("decoded_skip_special").get<std::string>());
  CHECK(tokenizer.decode(ids, {true, true}) == expected.at("decoded_cleanup").get<std::string>());
  CHECK(tokenizer.decode(expected.at("half_ids").get<Ids>(), {false, false}) ==
        expected.at("half_decoded").get<std::string>());
}

// What `sentencepiece` gives.
void check_sentencepiece(const Tokenizer& tokenizer, const json& expected) {
  if (!expected.contains("sp_ids")) return;
  auto text = expected.at("text").get<std::string>();
  CAPTURE(text);
  auto encoding = tokenizer.encode(text, plain());
  CHECK(encoding.ids == expected.at("sp_ids").get<Ids>());
  CHECK(encoding.tokens == expected.at("sp_pieces").get<Words>());
  CHECK(tokenizer.decode(encoding.ids) == expected.at("sp_decoded").get<std::string>());
}

}  // namespace

TEST_CASE("every case's ids, tokens and texts") {
  size_t n_cases = 0, n_sentencepiece = 0;
  for (const fs::path& folder : case_folders()) {
    CAPTURE(folder.string());
    json cases = read_json(folder / "tokenizer_cases.json");
    Tokenizer tokenizer = Tokenizer::from_pretrained(folder.string());
    CHECK(tokenizer.size() == cases.at("vocab_size_with_added").get<int64_t>());
    if (cases.contains("cases_of"))
      cases = read_json(folder.parent_path() / cases.at("cases_of") / "tokenizer_cases.json");
    for (const json& expected : cases.at("cases")) {
      check_case(tokenizer, expected);
      ++n_cases;
    }
    for (const char* name : {"spiece.model", "tokenizer.model"}) {
      if (!fs::exists(folder / name)) continue;
      Tokenizer sentencepiece = Tokenizer::from_pretrained((folder / name).string());
      for (const json& expected : cases.at("cases")) check_sentencepiece(sentencepiece, expected);
      ++n_sentencepiece;
    }
  }
  CHECK(n_cases >= 48 * 8);
  CHECK(n_sentencepiece >= 2);
}

// The real vocabularies are not shipped: the folder has the files that the cases name, each in a
// folder of the case's name (tests/peers/fetch_real_tokenizers.sh fills it).
TEST_CASE("real vocabularies") {
  const char* given = std::getenv("REDCO_REAL_TOKENIZERS");
  const char* home = std::getenv("HOME");
  fs::path root = given ? given : std::string(home ? home : "") + "/.cache/redco/real_tokenizers";
  if (!fs::is_directory(root)) {
    MESSAGE("neither REDCO_REAL_TOKENIZERS nor ", root.string(),
            " is there: real vocabularies are not tested");
    return;
  }
  for (const auto& entry : fs::directory_iterator(shipped_cases() / "real_tokenizers")) {
    fs::path folder = root / entry.path().stem();
    if (!fs::exists(folder)) {
      MESSAGE("no ", folder.string());
      continue;
    }
    CAPTURE(folder.string());
    bool is_sentencepiece = fs::exists(folder / "tokenizer.model");
    Tokenizer tokenizer = Tokenizer::from_pretrained(
        is_sentencepiece ? (folder / "tokenizer.model").string() : folder.string());
    json cases = read_json(entry.path());
    CHECK(cases.at("cases").size() > 40);
    for (const json& expected : cases.at("cases"))
      is_sentencepiece ? check_sentencepiece(tokenizer, expected) : check_case(tokenizer, expected);
  }
}
