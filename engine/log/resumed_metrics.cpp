// The metrics of a run that resumes.

#include "resumed_metrics.h"

#include "../io/atomic_file.h"

#include <redco/error.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

namespace redco::io {

namespace {

// The step of a line, with which it begins; -1 if it does not.
int64_t step_of(const std::string& line) {
  constexpr std::string_view start = "{\"step\":";
  int64_t step = -1;
  if (line.starts_with(start))
    std::from_chars(line.data() + start.size(), line.data() + line.size(), step);
  return step;
}

}  // namespace

bool visit_kept_metrics(
    const std::string& path, int64_t step,
    const std::function<void(const std::string& line, const nlohmann::json& json)>& visit) {
  std::error_code ignored;
  auto kind = std::filesystem::status(path, ignored).type();
  require(
      kind == std::filesystem::file_type::regular || kind == std::filesystem::file_type::not_found,
      path,
      ": not a regular file, expected the metrics of a run");  // a pipe may never end
  std::ifstream file(path);
  bool drops = false;
  for (std::string line; std::getline(file, line);) {
    bool is_kept = !file.eof();
    nlohmann::json json;
    if (int64_t logged = step_of(line); is_kept && logged >= step) {
      json = nlohmann::json::parse(line, nullptr, false);
      // A Trainer measures its steps.
      is_kept = logged == step && json.is_object() && !json.contains("step_seconds");
    }
    if (is_kept)
      visit(line, json);
    else
      drops = true;
  }
  return drops;
}

void remove_later_metrics(const std::string& path, int64_t step) {
  std::string kept;
  bool drops = visit_kept_metrics(
      path, step, [&](const std::string& line, const auto&) { kept += line + "\n"; });
  if (drops) write_file(path, kept);
}

}  // namespace redco::io
