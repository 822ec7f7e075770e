#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace redco {

class ScriptEngine;

/// `redco-lua plan FILE`: plans how a script's training runs on a cluster.
class PlanCommand {
 public:
  /// Adds it to the program's commands.
  void add_to(CLI::App& program);
  /// Whether the command line has it.
  bool is_given() const;
  /// Whether it only measures this machine, which several processes do together.
  bool is_calibration() const { return calibration_.has_value(); }
  /// The words of such a command, for its processes.
  std::vector<std::string> calibration_words() const;
  void run(ScriptEngine& engine) const;

 private:
  CLI::App* command_ = nullptr;
  std::optional<std::string> cluster_, servers_, json_, devices_, scaling_, out_, calibration_,
      objective_, keep_, allow_;
  bool is_here_ = false;
  std::optional<int64_t> max_model_shards_, n_layouts_, row_, global_batch_, fit_;
  double margin_ = 6;  // percent
  std::optional<double> timeout_;
};

}  // namespace redco
