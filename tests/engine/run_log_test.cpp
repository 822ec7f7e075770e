#include "../../engine/log/resumed_metrics.h"

#include <redco/error.h>
#include <redco/image.h>
#include <redco/run_log.h>

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <vector>

namespace redco {
namespace {

using namespace nlohmann::literals;

class Recorder : public Console {
 public:
  void line(std::string_view text) override { lines.emplace_back(text); }
  void progress(const ProgressState& state) override { states.push_back(state); }
  std::vector<std::string> lines;
  std::vector<ProgressState> states;
};

struct Folder {
  std::string path;
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "run_logXXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    path = pattern;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string read(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(path + "/" + name).rdbuf();
    return text.str();
  }
};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string without_time(const std::string& line) { return line.substr(line.find("] ") + 2); }

TEST_CASE("messages go to the console and to log.txt") {
  Folder folder;
  auto console = std::make_shared<Recorder>();
  RunLog log({.workdir = folder.path + "/a/b", .console = console});
  log.info("hello");
  log.info("body", "Title", 7);
  REQUIRE(console->lines.size() == 2);
  CHECK(without_time(console->lines[0]) == "hello");
  CHECK(without_time(console->lines[1]) == "Title (step 7): body");
  log.info("two\nlines", "Title");
  log.info("no title", "", 7);
  CHECK(without_time(console->lines[2]) == "Title:\ntwo\nlines");
  CHECK(without_time(console->lines[3]) == "Step 7: no title");
  log.note("to the file");
  CHECK(console->lines.size() == 4);
  std::string file = folder.read("a/b/log.txt");
  CHECK(has(file, "] hello\n["));
  CHECK(has(file, "] Title:\ntwo\nlines\n["));
  CHECK(has(file, "] to the file\n"));
  CHECK(file.substr(0, 2) == "[2");  // the date

  for (const char* text : {"a", "a", "b", "a"}) log.info_if_new(text);
  CHECK(console->lines.size() == 7);

  RunLog quiet({.workdir = folder.path, .verbose = false, .console = console});
  quiet.info("unseen");
  quiet.progress("Training", 3, "examples")->advance(3);
  CHECK(console->lines.size() == 7);
  CHECK(console->states.empty());
  CHECK(has(folder.read("log.txt"), "unseen"));
}

TEST_CASE("metrics are one line of JSON each; what is not finite is null") {
  Folder folder;
  auto console = std::make_shared<Recorder>();
  RunLog log({.workdir = folder.path, .console = console});
  log.metrics(3, {{"loss", 1.25}, {"lr", std::numeric_limits<double>::quiet_NaN()}, {"step", 9}});
  log.evaluation(4, "epoch0", {{"accuracy", 0.123456}, {"loss", 1.5}}, {"loss"});
  CHECK(folder.read("metrics.jsonl") ==
        "{\"step\":3,\"loss\":1.25,\"lr\":null}\n"
        "{\"step\":4,\"kind\":\"eval\",\"accuracy\":0.123456,\"loss\":1.5}\n");
  REQUIRE(console->lines.size() == 1);
  CHECK(without_time(console->lines[0]) ==
        "Eval results (step 4): accuracy 0.1235, loss 1.5 (best)");
  CHECK(folder.read("eval_results_epoch0.json") ==
        "{\n    \"accuracy\": 0.123456,\n    \"loss\": 1.5\n}\n");
}

TEST_CASE("a run that resumes removes what an earlier one logged after the checkpoint") {
  Folder folder;
  auto step_of_trainer = [](double loss) {
    return std::map<std::string, double>{{"loss", loss}, {"step_seconds", 1}};
  };
  {
    RunLog log({.workdir = folder.path});
    for (int64_t step = 0; step < 4; ++step) {
      log.metrics(step, step_of_trainer(double(step)));
      log.evaluation(step + 1, "all", {{"accuracy", double(step + 1)}});
      log.metrics(step + 1, {{"own", double(step + 1)}});  // of on_eval, after step + 1 steps
    }
    std::ofstream(folder.path + "/metrics.jsonl", std::ios::app) << "{\"step\":4,\"lo";
  }
  const std::string path = folder.path + "/metrics.jsonl";
  io::remove_later_metrics(path, 2);
  const std::string kept =
      R"({"step":0,"loss":0.0,"step_seconds":1.0}
{"step":1,"kind":"eval","accuracy":1.0}
{"step":1,"own":1.0}
{"step":1,"loss":1.0,"step_seconds":1.0}
{"step":2,"kind":"eval","accuracy":2.0}
{"step":2,"own":2.0}
)";
  CHECK(folder.read("metrics.jsonl") == kept);
  io::remove_later_metrics(path, 2);
  CHECK(folder.read("metrics.jsonl") == kept);

  io::remove_later_metrics(folder.path + "/none.jsonl", 2);
  CHECK(!std::filesystem::exists(folder.path + "/none.jsonl"));
}

TEST_CASE("outputs are JSON for a reader") {
  Folder folder;
  RunLog log({.workdir = folder.path});
  log.outputs(2, "epoch0",
              Tree::List{Tree::Dict{{"pred", at::tensor({0.1f, std::nanf("")})},
                                    {"flags", at::tensor({1, 0}).to(at::kBool)}},
                         at::zeros({2, 501}), "caf\xE9", Tree(), 3, INFINITY});
  nlohmann::json written = nlohmann::json::parse(folder.read("outputs_epoch0.json"));
  CHECK(
      written.dump() ==
      R"([{"flags":[true,false],"pred":[0.1,"nan"]},"Float[2, 501]","caf\uFFFD",null,3,"inf"])"_json
          .dump());
  CHECK_THROWS_WITH_AS(log.outputs(2, "a/b", {}), doctest::Contains("desc = \"a/b\""), Error);
}

TEST_CASE("processes other than the first write what they are asked for") {
  Folder folder;
  auto console = std::make_shared<Recorder>();
  auto run = [&](bool log_all_processes) {
    RunLog log({.workdir = folder.path,
                .console = console,
                .process_id = 2,
                .n_processes = 4,
                .log_all_processes = log_all_processes,
                .run_tensorboard = true});
    log.info("hello", "Title", 1);
    log.metrics(1, {{"loss", 1}});
    log.evaluation(1, "epoch0", {{"loss", 1}});
    log.outputs(1, "epoch0", Tree::List{});
    log.progress("Training", 1, "examples")->advance(1);
  };
  run(false);
  CHECK(std::filesystem::is_empty(folder.path));
  run(true);
  CHECK(console->lines.empty());
  CHECK(console->states.empty());
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path), {}) == 1);
  CHECK(has(folder.read("log_2.txt"), "] Title (step 1): hello\n"));
}

// ---- TensorBoard ----

uint32_t masked_crc32c(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (char byte : bytes) {
    crc ^= uint8_t(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
  }
  crc = ~crc;
  return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

std::string hex(std::string_view bytes) {
  std::string text;
  char digits[3];
  for (char byte : bytes) {
    std::snprintf(digits, sizeof(digits), "%02x", uint8_t(byte));
    text += digits;
  }
  return text;
}

template <class T>
T take(std::string_view& bytes) {
  REQUIRE(bytes.size() >= sizeof(T));
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  bytes.remove_prefix(sizeof(T));
  return value;
}

// The records' bytes, whose checksums hold.
std::vector<std::string> records(std::string_view file) {
  std::vector<std::string> found;
  while (!file.empty()) {
    std::string_view head = file.substr(0, 8);
    auto size = take<uint64_t>(file);
    CHECK(take<uint32_t>(file) == masked_crc32c(head));
    REQUIRE(file.size() >= size);
    found.emplace_back(file.substr(0, size));
    file.remove_prefix(size);
    CHECK(take<uint32_t>(file) == masked_crc32c(found.back()));
  }
  return found;
}

std::string event_file(const Folder& folder) {
  std::string found;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path))
    if (has(entry.path().filename().string(), "events.out.tfevents.")) {
      CHECK(found.empty());
      found = folder.read(entry.path().filename().string());
    }
  return found;
}

// The bytes that the Python package `tensorboard` writes for the same events.
TEST_CASE("TensorBoard's event file") {
  // A whole record first: that the checksums above are right.
  CHECK(records(std::string("\x0f\0\0\0\0\0\0\0\x6d\x53\x2b\x09\x1a\x0d"
                            "brain.Event:2\xfc\x98\x51\x29",
                            31))
            .size() == 1);
  Folder folder;
  RunLog log({.workdir = folder.path, .run_tensorboard = true});
  log.info("body", "Title");
  log.info("without a title");
  CHECK(event_file(folder).empty());  // it begins where the run does
  log.metrics(7, {{"loss", 1.25}, {"lr", 300}});
  std::vector<std::string> found = records(event_file(folder));
  REQUIRE(found.size() == 4);
  for (std::string& each : found) std::fill(&each[1], &each[9], '\0');  // the time
  CHECK(hex(found[0]) == "0900000000000000001a0d627261696e2e4576656e743a32");
  CHECK(hex(found[1]) == "09000000000000000010083a020801");
  CHECK(hex(found[2]) ==
        "09000000000000000010072a230a210a055469746c65420e08071204120208014204626f64794a080a060a04"
        "74657874");
  CHECK(hex(found[3]) ==
        "09000000000000000010072a240a110a0a747261696e2f6c6f7373150000a03f0a0f0a08747261696e2f6c72"
        "1500009643");

  CHECK_THROWS_WITH_AS(log.image(7, "digits", at::zeros({2, 8, 8})),
                       doctest::Contains("log_image: digits: an image is [height, width] or"),
                       Error);
  CHECK_THROWS_WITH_AS(log.image(7, "digits", at::full({8, 8}, 1.5)),
                       doctest::Contains("from 0 to 1, these from 1.5 to 1.5"), Error);
  CHECK_THROWS_WITH_AS(log.image(7, "digits", at::full({8, 8}, 3, at::kLong)),
                       doctest::Contains("got Long"), Error);
  log.image(8, "digits", at::linspace(0, 1, 48).view({3, 4, 4}));
  found = records(event_file(folder));
  REQUIRE(found.size() == 5);
  size_t png = found[4].find("\x89PNG");
  REQUIRE(png != std::string::npos);
  at::Tensor pixels = decode_image("it", std::string_view(found[4]).substr(png));
  CHECK(at::equal(pixels, at::linspace(0, 1, 48).view({3, 4, 4}).mul(255).round().to(at::kByte)));
}

TEST_CASE("a work folder that cannot be written is an error that names it") {
  Folder folder;
  std::ofstream(folder.path + "/file") << "x";
  CHECK_THROWS_WITH_AS(RunLog({.workdir = folder.path + "/file/below"}),
                       doctest::Contains("/file/below"), Error);
  RunLog log({.workdir = folder.path + "/gone"});
  std::filesystem::remove_all(folder.path + "/gone");
  CHECK_THROWS_WITH_AS(log.metrics(1, {}), doctest::Contains("/gone/metrics.jsonl"), Error);
}

TEST_CASE("a full disk leaves the lines before whole") {
  if (!std::filesystem::exists("/dev/full")) return;
  Folder folder;
  RunLog log({.workdir = folder.path});
  std::filesystem::create_symlink("/dev/full", folder.path + "/metrics.jsonl");
  CHECK_THROWS_WITH_AS(log.metrics(1, {{"loss", 1}}), doctest::Contains("No space left"), Error);
}

TEST_CASE("a bar that ends says so, with what was shown last") {
  auto console = std::make_shared<Recorder>();
  RunLog log({.console = console});
  {
    auto bar = log.progress("Training", 4, "examples");
    bar->set_part_of_run(0.25, 0.5);
    bar->skip(2);
    bar->advance(1, {{"loss", 3.0}});
    bar->advance(1, {{"loss", 2.0}});
  }
  REQUIRE_FALSE(console->states.empty());
  const ProgressState& last = console->states.back();
  CHECK(last.finished);
  CHECK(last.is_kept);
  CHECK(last.done == 4);
  // Steps done before are not part of the rate.
  CHECK(last.rate * last.elapsed_seconds == doctest::Approx(2));
  CHECK(last.run_done == 0.5);
  CHECK(last.postfix.at("loss") == 2.0);
  log.progress("Evaluating", 1, "examples", false);
  CHECK_FALSE(console->states.back().is_kept);
}

TEST_CASE("the text of a bar: the loss and the reward first, then as much as fits") {
  ProgressState state;
  state.desc = "Epoch 3 / 20";
  state.done = 30;
  state.total = 120;
  state.rate = 1234.5;
  state.unit = "tokens";
  state.eta_seconds = 73;
  state.elapsed_seconds = 4000;
  state.postfix = {{"grad_norm", 1.5}, {"loss", 2.34567}};
  CHECK(format_progress(state, 200) ==
        "Epoch 3 / 20 25% loss 2.346 1.23k tokens/s ETA 1:13 30/120 grad_norm 1.5");
  CHECK(format_progress(state, 60) == "Epoch 3 / 20 25% loss 2.346 1.23k tokens/s ETA 1:13 30/120");
  CHECK(format_progress(state, 40) == "Epoch 3 / 20 25% loss 2.346");
  CHECK(format_progress(state, 7) == "Epoch 3");
  state.run_done = 0.5;
  state.run_eta_seconds = 61;
  CHECK(format_progress(state, 79) ==
        "Epoch 3 / 20 25% loss 2.346 1.23k tokens/s ETA 1:13 (run 50%, ETA 1:01) 30/120");
  state.finished = true;
  CHECK(has(format_progress(state, 200), "in 1:06:40 (run 50%) 30/120"));
  state.total = 0;
  CHECK(has(format_progress(state, 200), "Epoch 3 / 20 0% loss"));
  state.postfix.insert({{"clip_ratio/low", 0.25}, {"kl", 0.5}, {"reward", 0.75}});
  CHECK(has(format_progress(state, 200), "20 0% loss 2.346 reward 0.75 1.23k tokens/s"));
  CHECK(has(format_progress(state, 200), "grad_norm 1.5 kl 0.5 clip_ratio/low 0.25"));
}

}  // namespace
}  // namespace redco
