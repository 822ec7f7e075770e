#include <redco/error.h>
#include <redco/tokenizer.h>

#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <sys/stat.h>

#include <atomic>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <thread>

namespace fs = std::filesystem;
using nlohmann::json;
using redco::Tokenizer;
using Ids = std::vector<int64_t>;

namespace {

fs::path cases() { return fs::path(TESTS_FOLDER) / "cases"; }

std::string read_bytes(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE_MESSAGE(file.is_open(), path.string());
  return {std::istreambuf_iterator<char>(file), {}};
}

Tokenizer read_case(const char* name) {
  return Tokenizer::from_pretrained((cases() / name).string());
}

// Fails unless `body` throws an Error whose text has every part.
void check_error(const std::function<void()>& body, std::initializer_list<const char*> parts) {
  try {
    body();
  } catch (const redco::Error& error) {
    for (const char* part : parts)
      CHECK_MESSAGE(std::string(error.what()).find(part) != std::string::npos, error.what(),
                    " has no ", part);
    return;
  }
  FAIL_CHECK("expected an error");
}

// A folder of its own that goes with the test.
struct Folder {
  fs::path path;
  Folder() {
    std::string name = (fs::temp_directory_path() / "redco-tokenizer-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Folder() { fs::remove_all(path); }
  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path / name, std::ios::binary) << bytes;
  }
};

json small_json() {
  return json::parse(R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2},
                         "merges": ["a b"]}})");
}

Tokenizer from(const json& file) { return Tokenizer::from_json("t.json: ", file.dump()); }

redco::TokenizerParts byte_level_parts() {
  redco::TokenizerParts parts;
  parts.tokens = {"<|end|>", "1", "2", "12", "Ġ", "a", "Ġa"};
  parts.types = {3, 1, 1, 1, 1, 1, 1};
  parts.merges = {"1 2", "Ġ a"};
  parts.eos_id = 0;
  return parts;
}

}  // namespace

TEST_CASE("a batch is padded and truncated into tensors") {
  Tokenizer tokenizer = read_case("bart");
  redco::BatchOptions options;
  check_error([&] { tokenizer.encode_batch({"a", "a b c d"}, options); }, {"padding", "longest"});
  options.padding = redco::Padding::longest;
  options.encode.with_offsets = true;
  auto batch = tokenizer.encode_batch({"é a", "a b c d"}, options);
  auto longest = tokenizer.encode("a b c d").ids, shorter = tokenizer.encode("é a").ids;
  REQUIRE(batch.input_ids.size(1) == int64_t(longest.size()));
  shorter.resize(longest.size(), *tokenizer.special_token_id("pad"));
  CHECK(at::equal(batch.input_ids[0], at::tensor(shorter)));
  CHECK(batch.attention_mask.sum().item<int64_t>() ==
        int64_t(longest.size() + tokenizer.encode("é a").ids.size()));
  CHECK(batch.offset_mapping.sizes() == at::IntArrayRef{2, batch.input_ids.size(1), 2});
  options.padding_side = redco::Side::left;
  options.pad_to_multiple_of = 16;
  auto left = tokenizer.encode_batch({"é a", "a b c d"}, options);
  CHECK(left.input_ids.size(1) == 16);
  CHECK(left.attention_mask[0][0].item<int64_t>() == 0);
  CHECK(left.attention_mask[0][15].item<int64_t>() == 1);
  options = {};
  options.encode.max_length = 4;
  auto cut = tokenizer.encode_batch({"a b c d e", "b c d e f g"}, options);
  CHECK(cut.input_ids.size(1) == 4);
  CHECK(cut.input_ids[0][0].item<int64_t>() == *tokenizer.special_token_id("bos"));
  CHECK(cut.input_ids[0][3].item<int64_t>() == *tokenizer.special_token_id("eos"));
  options.encode.max_length = 1;
  check_error([&] { tokenizer.encode_batch({"a"}, options); }, {"max_length is 1", "2 special"});
}

TEST_CASE("a pair goes into its template, the longer text cut first") {
  Tokenizer tokenizer = read_case("bart");
  redco::EncodeOptions plain;
  plain.add_special_tokens = false;
  auto a = tokenizer.encode("a b c d e f", plain).ids, b = tokenizer.encode("x y", plain).ids;
  redco::EncodeOptions options;
  options.max_length = int64_t(b.size()) + 4 + 2;
  auto ids = tokenizer.encode("a b c d e f", "x y", options).ids;
  Ids expected = {0, a[0], a[1], 2, 2};
  expected.insert(expected.end(), b.begin(), b.end());
  expected.push_back(2);
  CHECK(ids == expected);
}

TEST_CASE("padding without a pad token says what to set") {
  Tokenizer tokenizer = read_case("gpt2");
  redco::BatchOptions options;
  options.padding = redco::Padding::longest;
  check_error([&] { tokenizer.encode_batch({"a", "a b c d"}, options); }, {"pad_token", "eos"});
  tokenizer.set_special_token("pad", *tokenizer.special_token("eos"));
  CHECK(tokenizer.encode_batch({"a", "a b c d"}, options).attention_mask.dim() == 2);
  check_error([&] { tokenizer.set_special_token("pad", "nowhere"); }, {"nowhere"});
}

TEST_CASE("a stream holds back what is no whole character") {
  for (const char* name : {"gpt2", "llama", "t5_relu_tied", "llama3"}) {
    CAPTURE(name);
    auto tokenizer = std::make_shared<Tokenizer>(read_case(name));
    std::string text = "Hello world, caf\u00e9 \U0001F600 \u4f60\u597d end.", streamed;
    redco::EncodeOptions plain;
    plain.add_special_tokens = false;
    auto ids = tokenizer->encode(text, plain).ids;
    redco::DecodeStream stream(tokenizer);
    for (int64_t id : ids) {
      std::string fresh = stream.step(id);
      CHECK(fresh.find("\uFFFD") == std::string::npos);
      streamed += fresh;
    }
    streamed += stream.finish();
    CHECK(streamed == tokenizer->decode(ids, {false, false}));
  }
}

TEST_CASE("parts in memory make the tokenizer that files would") {
  Tokenizer tokenizer = Tokenizer::from_parts("parts: ", byte_level_parts());
  CHECK(tokenizer.encode("12 a<|end|>").ids == Ids{3, 6, 0});
  auto parts = byte_level_parts();
  parts.pre_tokenizer = "smollm";
  CHECK(Tokenizer::from_parts("parts: ", parts).encode("12 a").ids == Ids{1, 2, 6});
  parts.add_eos = true;
  CHECK(Tokenizer::from_parts("parts: ", parts).encode("1").ids == Ids{1, 0});
  parts.pre_tokenizer = "klingon";
  check_error([&] { Tokenizer::from_parts("parts: ", parts); }, {"klingon", "smollm"});
  parts = byte_level_parts();
  parts.merges.push_back("1 a");
  check_error([&] { Tokenizer::from_parts("parts: ", parts); }, {"parts: ", "1a"});
  parts = byte_level_parts();
  parts.eos_id = 99;
  check_error([&] { Tokenizer::from_parts("parts: ", parts); }, {"eos", "99"});
}

TEST_CASE("vocab.json with merges.txt is GPT-2's tokenizer") {
  json file = json::parse(read_bytes(cases() / "gpt2/tokenizer.json"));
  Folder folder;
  folder.write("vocab.json", file["model"]["vocab"].dump());
  std::string merges = "#version: 0.2\n";
  for (const auto& merge : file["model"]["merges"]) merges += merge.get<std::string>() + "\n";
  folder.write("merges.txt", merges);
  folder.write("special_tokens_map.json", R"({"eos_token": "<|endoftext|>"})");
  Tokenizer ours = Tokenizer::from_pretrained(folder.path.string()), given = read_case("gpt2");
  std::string text = "Hello world, it's 2026!<|endoftext|> caf\u00e9";
  CHECK(ours.encode(text).ids == given.encode(text).ids);
  Folder copy;
  ours.save_pretrained(copy.path.string());
  CHECK(read_bytes(copy.path / "merges.txt") == merges);
  CHECK(read_bytes(copy.path / "vocab.json") == file["model"]["vocab"].dump());
}

TEST_CASE("a SentencePiece model in a folder has the template of its class") {
  Folder folder;
  folder.write("tokenizer.model", read_bytes(cases() / "llama/tokenizer.model"));
  folder.write("tokenizer_config.json", read_bytes(cases() / "llama/tokenizer_config.json"));
  Tokenizer ours = Tokenizer::from_pretrained(folder.path.string()), given = read_case("llama");
  for (const char* text : {"Hello world", "caf\u00e9 \U0001F600", ""})
    CHECK(ours.encode(text).ids == given.encode(text).ids);
  Folder t5;
  t5.write("spiece.model", read_bytes(cases() / "t5_relu_tied/spiece.model"));
  t5.write("tokenizer_config.json", read_bytes(cases() / "t5_relu_tied/tokenizer_config.json"));
  Tokenizer our_t5 = Tokenizer::from_pretrained(t5.path.string()),
            given_t5 = read_case("t5_relu_tied");
  CHECK(our_t5.size() == given_t5.size());
  for (const char* text : {"Hello world", "a <extra_id_3> b"})
    CHECK(our_t5.encode(text).ids == given_t5.encode(text).ids);
}

TEST_CASE("added tokens are saved into the text of tokenizer.json, whose rest stays") {
  const char* model = R"("model" : {"type":"BPE", "vocab": {"a": 0, "\"added_tokens\": [": 1,
      "added_tokens": 2, "}]\\": 3}, "merges": []})";
  for (std::string added :
       {"", "\n \"added_tokens\" :[ ] ,",
        R"("added_tokens": [{"id": 4, "content": "]}\"", "special": true}], )"}) {
    std::string after = std::string("{ ") + added + model + ", \"version\": \"1.0\" }\n";
    std::string before = std::string("{ ") + model + ", " + added + " \"decoder\": null}";
    for (const std::string& text : {after, before}) {
      CAPTURE(text);
      Folder folder, saved;
      folder.write("tokenizer.json", text);
      Tokenizer tokenizer = Tokenizer::from_pretrained(folder.path.string());
      int64_t size = tokenizer.size();
      CHECK(tokenizer.add_tokens({{.content = "<x>", .special = true}, {.content = "a\"{"}}) == 2);
      CHECK(tokenizer.add_tokens({{.content = "<x>", .special = true}}) == 0);
      tokenizer.save_pretrained(saved.path.string());
      std::string written = read_bytes(saved.path / "tokenizer.json");
      CHECK(written.find(model) != written.npos);
      Tokenizer again = Tokenizer::from_pretrained(saved.path.string());
      CHECK(again.size() == size + 2);
      CHECK(again.token_to_id("<x>") == size);
      CHECK(again.token_to_id("a\"{") == size + 1);
      CHECK(again.is_special(size));
      CHECK(again.encode("<x>a\"{").ids == Ids{size, size + 1});
    }
  }
}

TEST_CASE("vocabularies of other libraries are named") {
  check_error([] { Tokenizer::from_sentencepiece("m: ", "IQ== 0\nIg== 1\n"); },
              {"m: ", "tiktoken", "tokenizer.json"});
  check_error([] { Tokenizer::from_json("t: ", R"({"config": {"version": "v3"}, "vocab": [1]})"); },
              {"t: ", "tekken", "tokenizer.json"});
}

TEST_CASE("what is wrong in tokenizer.json is named") {
  auto with = [](const char* pointer, json value) {
    json file = small_json();
    file[json::json_pointer(pointer)] = std::move(value);
    return file;
  };
  CHECK(from(small_json()).encode("abba").ids == Ids{2, 1, 0});
  struct Wrong {
    json file;
    std::initializer_list<const char*> parts;
  };
  const Wrong all[] = {
      {json::array(), {"t.json: ", "an object"}},
      {json::object(), {"t.json: ", "'model'"}},
      {with("/model/type", "WordLevel"), {"model", "WordLevel", "Unigram"}},
      {{{"model",
         {{"type", "WordPiece"}, {"vocab", {{"a", 0}}}, {"max_input_chars_per_word", -1}}}},
       {"model.max_input_chars_per_word", "count"}},
      {with("/model/vocab/c", -1), {"model.vocab", "'c'", "-1"}},
      {with("/model/vocab/c", 1e300), {"'c'"}},
      {with("/model/vocab/c", 0), {"'a'", "'c'", "same number"}},
      {with("/model/merges/0", "a"), {"model.merges", "entry 0"}},
      {with("/model/merges/0", json{"a", "c"}), {"'c'"}},
      {with("/model/merges/0", json{"b", "a"}), {"'ba'"}},
      {with("/model/unk_token", "x"), {"unknown token", "'x'"}},
      {with("/model/dropout", 0.1), {"dropout"}},
      {with("/normalizer", {{"type", "Bert"}}), {"normalizer", "Bert", "NFKC"}},
      {with("/normalizer", {{"type", "Replace"}, {"pattern", {{"Regex", "("}}}, {"content", ""}}),
       {"normalizer.pattern", "'('"}},
      {with("/normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", "AAAA"}}),
       {"precompiled_charsmap"}},
      {with("/normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", "!"}}), {"base64"}},
      {with("/pre_tokenizer",
            {{"type", "Split"}, {"pattern", {{"String", "a"}}}, {"behavior", "No"}}),
       {"behavior", "Isolated"}},
      {with("/decoder", {{"type", "Sequence"}, {"decoders", {{{"type", "CTC"}}}}}),
       {"decoder.decoders[0]", "CTC"}},
      {with("/post_processor", {{"type", "RobertaProcessing"}, {"sep", {"a"}}, {"cls", {"a", 0}}}),
       {"post_processor"}},
      {with("/added_tokens", {{{"id", 1e9}, {"content", "x"}}}), {"added_tokens[0].id"}},
      {with("/added_tokens", {{{"id", 3000000000u}, {"content", "x"}}}), {"added_tokens[0].id"}},
  };
  for (const Wrong& wrong : all) check_error([&] { from(wrong.file); }, wrong.parts);
  check_error([&] { Tokenizer::from_json("t.json: ", std::string(100'000, '[')); }, {"nested"});
  check_error([&] { Tokenizer::from_json("t.json: ", R"({"model": {}, "model": {}})"); },
              {"twice"});
}

// Files damaged in a thousand ways: an Error, or a tokenizer that works.
TEST_CASE("a pipe is refused, not waited for") {
  Folder folder;
  fs::path pipe = folder.path / "tokenizer.model";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  check_error([&] { Tokenizer::from_pretrained(pipe.string()); },
              {"tokenizer.model", "a pipe or device", "expected a tokenizer's file"});
}

TEST_CASE("damaged files neither crash nor hang") {
  std::mt19937 random(1);
  auto damage = [&](std::string bytes) {
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    for (unsigned n = 1 + random() % 4; n > 0 && !bytes.empty(); --n) {
      size_t at = random() % bytes.size();
      if (random() % 3 == 0)
        bytes.erase(at, random() % 9);
      else
        bytes[at] = char(random());
    }
    return bytes;
  };
  auto use = [](const Tokenizer& tokenizer) {
    redco::EncodeOptions options;
    options.with_offsets = true;
    auto ids = tokenizer.encode("Hello  <s> w\u00f6rld\n \uFF26\u0301 12", options).ids;
    tokenizer.decode(ids);
  };
  auto llama = read_bytes(cases() / "llama/tokenizer.model");
  auto t5 = read_bytes(cases() / "t5_relu_tied/spiece.model");
  auto file = read_bytes(cases() / "gpt2/tokenizer.json");
  size_t refused = 0;
  for (int i = 0; i < 150; ++i)
    for (const std::string* bytes : {&llama, &t5, &file}) try {
        std::string damaged = damage(*bytes);
        use(bytes == &file ? Tokenizer::from_json("t: ", damaged)
                           : Tokenizer::from_sentencepiece("t: ", damaged));
      } catch (const redco::Error& error) {
        CHECK_MESSAGE(std::string(error.what()).find("t: ") == 0, error.what());
        ++refused;
      }
  CHECK(refused > 100);
}

TEST_CASE("a million equal letters are encoded in seconds") {
  for (const char* name : {"gpt2", "llama", "t5_relu_tied", "llama3", "bart"}) {
    CAPTURE(name);
    Tokenizer tokenizer = read_case(name);
    for (const char* letter : {"a", " ", "\u2581", "\n", "1", "!", "\xFF"}) {
      std::string text;
      while (text.size() < 1'000'000) text += letter;
      std::clock_t start = std::clock();  // of this process: others may keep the machine busy
      tokenizer.encode(text);
      double seconds = double(std::clock() - start) / CLOCKS_PER_SEC;
      CHECK_MESSAGE(seconds < 5, letter, " took ", seconds);
    }
  }
}

TEST_CASE("several threads may encode at once") {
  Tokenizer tokenizer = read_case("gpt2");
  auto expected = tokenizer.encode("Hello world, it's me").ids;
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i)
        wrong += tokenizer.encode("Hello world, it's me").ids != expected;
    });
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
}
