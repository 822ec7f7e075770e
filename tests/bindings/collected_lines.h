#pragma once

#include <redco/run_log.h>

#include <string>
#include <string_view>
#include <vector>

namespace redco {

/// A console that keeps its lines.
struct CollectedLines : Console {
  void line(std::string_view text) override { lines.emplace_back(text); }
  void progress(const ProgressState&) override {}
  std::vector<std::string> lines;
};

}  // namespace redco
