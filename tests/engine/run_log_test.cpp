#include <redco/error.h>
#include <redco/run_log.h>

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <vector>

namespace redco {
namespace {

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

TEST_CASE("messages go to the console and to log.txt") {
  Folder folder;
  auto console = std::make_shared<Recorder>();
  RunLog log(folder.path + "/a/b", true, console);
  log.info("hello");
  log.info("body", "Title", 7);
  REQUIRE(console->lines.size() == 2);
  CHECK(has(console->lines[0], "INFO] hello"));
  CHECK(has(console->lines[1], "### Title (step 7)\n"));
  CHECK(folder.read("a/b/log.txt") == console->lines[0] + "\n" + console->lines[1] + "\n");

  RunLog quiet(folder.path, false, console);
  quiet.info("unseen");
  quiet.progress("Training", 3, "examples")->advance(3);
  CHECK(console->lines.size() == 2);
  CHECK(console->states.empty());
  CHECK(has(folder.read("log.txt"), "unseen"));
}

TEST_CASE("metrics are one line of JSON each; what is not finite is null") {
  Folder folder;
  auto console = std::make_shared<Recorder>();
  RunLog log(folder.path, true, console);
  log.metrics(3, {{"loss", 1.25}, {"lr", std::numeric_limits<double>::quiet_NaN()}, {"step", 9}});
  log.evaluation(4, {{"accuracy", 0.5}});
  CHECK(
      folder.read("metrics.jsonl") ==
      "{\"step\":3,\"loss\":1.25,\"lr\":null}\n{\"step\":4,\"kind\":\"eval\",\"accuracy\":0.5}\n");
  REQUIRE(console->lines.size() == 1);
  CHECK(has(console->lines[0], "Evaluation (step 4): accuracy 0.5"));
}

TEST_CASE("a work folder that cannot be written is an error that names it") {
  Folder folder;
  std::ofstream(folder.path + "/file") << "x";
  CHECK_THROWS_WITH_AS(RunLog(folder.path + "/file/below", true, nullptr),
                       doctest::Contains("/file/below"), Error);
  RunLog log(folder.path + "/gone", true, nullptr);
  std::filesystem::remove_all(folder.path + "/gone");
  CHECK_THROWS_WITH_AS(log.metrics(1, {}), doctest::Contains("/gone/metrics.jsonl"), Error);
}

TEST_CASE("a full disk leaves the lines before whole") {
  if (!std::filesystem::exists("/dev/full")) return;
  Folder folder;
  RunLog log(folder.path, true, nullptr);
  std::filesystem::create_symlink("/dev/full", folder.path + "/metrics.jsonl");
  CHECK_THROWS_WITH_AS(log.metrics(1, {{"loss", 1}}), doctest::Contains("No space left"), Error);
}

TEST_CASE("a bar that ends says so, with what was shown last") {
  auto console = std::make_shared<Recorder>();
  RunLog log("", true, console);
  {
    auto bar = log.progress("Training", 4, "examples");
    bar->advance(2, {{"loss", 3.0}});
    bar->advance(2, {{"loss", 2.0}});
  }
  REQUIRE_FALSE(console->states.empty());
  const ProgressState& last = console->states.back();
  CHECK(last.finished);
  CHECK(last.done == 4);
  CHECK(last.postfix.at("loss") == 2.0);
}

TEST_CASE("the text of a bar") {
  ProgressState state;
  state.desc = "Training";
  state.done = 30;
  state.total = 120;
  state.rate = 1234.5;
  state.unit = "tokens";
  state.eta_seconds = 73;
  state.elapsed_seconds = 4000;
  state.postfix = {{"loss", 2.34567}};
  CHECK(format_progress(state, 200) == "Training 25% 30/120 loss 2.346 1.23k tokens/s ETA 1:13");
  CHECK(format_progress(state, 10) == "Training 2");
  state.finished = true;
  CHECK(has(format_progress(state, 200), "in 1:06:40"));
  state.total = 0;
  CHECK(has(format_progress(state, 200), "Training 0% 30/0"));
}

}  // namespace
}  // namespace redco
