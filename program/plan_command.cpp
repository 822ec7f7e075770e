// The command `redco-lua plan`.

#include "plan_command.h"

#include "command_code.h"

#include <redco/error.h>
#include <redco/script_engine.h>
#include <redco/tree.h>

#include <CLI/CLI.hpp>
#include <string_view>

namespace redco {

void PlanCommand::add_to(CLI::App& program) {
  command_ = program.add_subcommand(
      "plan",
      "Estimate how the training in FILE would run on a cluster: plan [OPTIONS] FILE [ARGS]");
  CLI::App& plan = *command_;
  auto* cluster =
      plan.add_option("--cluster", cluster_, "The description of the cluster, cluster.toml")
          ->type_name("FILE");
  auto* servers = plan.add_option("--servers", servers_,
                                  "The cluster as a text, such as \"2x H100-80G:8, ib 400G\"")
                      ->type_name("TEXT")
                      ->excludes(cluster);
  plan.add_flag("--here", is_here_, "This machine; the default")
      ->excludes(cluster)
      ->excludes(servers);
  plan.add_option("--devices", devices_,
                  "Plan for N such devices, or for several numbers: 8,16,...,1024")
      ->type_name("N");
  plan.add_option("--scaling", scaling_,
                  "With several numbers: the global batch grows (weak) or stays (strong)")
      ->type_name("KIND")
      ->check(CLI::IsMember({"weak", "strong"}));
  auto* global_batch = plan.add_option("--global-batch,--global_batch", global_batch_,
                                       "Examples of an optimizer step; default: the script's")
                           ->type_name("N")
                           ->check(CLI::Range(int64_t(1), int64_t(1) << 40));
  plan.add_option("--keep", keep_,
                  "Keep the script's global batch (global, the default), or the batch of a device "
                  "(per-device)")
      ->type_name("KIND")
      ->check(CLI::IsMember({"global", "per-device"}))
      ->excludes(global_batch);
  plan.add_option("--objective", objective_,
                  "What the best layout has least of: time (the default), memory or cost")
      ->type_name("KIND")
      ->check(CLI::IsMember({"time", "memory", "cost"}));
  plan.add_option(
          "--allow", allow_,
          "What layouts may change in the script: recompute (the default), dtype, both with a "
          "comma, or none")
      ->type_name("LIST");
  plan.add_option("--fit", fit_, "Plan the N-th training of FILE; default: 1")
      ->type_name("N")
      ->check(CLI::Range(int64_t(1), int64_t(1000000)));
  plan.add_option("--max-mp", max_model_shards_,
                  "Try at most N model shards; default: those of a host")
      ->type_name("N")
      ->check(CLI::Range(int64_t(1), int64_t(1000000)));
  plan.add_option("--margin", margin_, "The percentage of memory to keep free; default: 6")
      ->type_name("PERCENT")
      ->check(CLI::Range(0.0, 99.0));
  plan.add_option("--timeout", timeout_,
                  "Try layouts for this long, or calibrate; default: 60, or 20")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.0, 1e6));
  plan.add_option("--layouts", n_layouts_, "Print at most N layouts; default: 8")
      ->type_name("N")
      ->check(CLI::Range(int64_t(1), int64_t(1000)));
  plan.add_option("--explain", row_, "List what a device holds in this row of the table")
      ->type_name("ROW")
      ->check(CLI::Range(int64_t(1), int64_t(1000)));
  plan.add_option("--out", out_,
                  "Draw the memory of that row, or the curve of several --devices: .svg or .png")
      ->type_name("FILE");
  plan.add_option("--calibrate", calibration_,
                  "Measure this machine, with --nproc N also its links, and write cluster.toml")
      ->type_name("FILE");
  plan.add_option("--json", json_, "Write the plan to FILE; - is standard output")
      ->type_name("FILE");
  plan.prefix_command();
}

bool PlanCommand::is_given() const { return command_->parsed(); }

std::vector<std::string> PlanCommand::calibration_words() const {
  std::vector<std::string> words{"plan", "--calibrate", *calibration_};
  if (timeout_) words.insert(words.end(), {"--timeout", std::to_string(*timeout_)});
  return words;
}

void PlanCommand::run(ScriptEngine& engine) const {
  std::vector<std::string> script = command_->remaining();
  auto run_own = [&engine](const char* code, const std::vector<std::string>& args) {
    run_command_code(engine, code, "plan", args);
  };
  if (is_calibration()) {
    if (!script.empty()) throw UsageError("plan: --calibrate takes no script");
    // Measuring takes about twice the seconds that it is given.
    return run_own(
        "local path, seconds = ... "
        "require 'redco.plan'.calibrate(path, tonumber(seconds))",
        {*calibration_, std::to_string(timeout_.value_or(20) / 2)});
  }
  if (script.empty()) throw UsageError("plan: give the script: redco-lua plan [OPTIONS] FILE");
  if (script[0].starts_with("-"))
    throw UsageError("plan: there is no flag " + script[0] + "; see redco-lua plan --help");
  auto text_of = [](const std::optional<int64_t>& number) {
    return number ? std::to_string(*number) : std::string();
  };
  constexpr const char* begin = R"(
    local cluster, devices, max_model_shards, margin, timeout, n_layouts, scaling, global, fit,
      has_timelines, objective, keep, allow = ...
    local function given(text) return text ~= "" and text or nil end
    require "redco.plan".start {
      cluster = given(cluster), devices = given(devices), scaling = given(scaling),
      max_model_shards = tonumber(max_model_shards), margin = tonumber(margin) / 100,
      timeout = tonumber(timeout), n_layouts = tonumber(n_layouts), fit = tonumber(fit),
      global_batch_size = tonumber(global), has_timelines = has_timelines == "true",
      objective = given(objective), keep = given(keep), allow = given(allow),
    })";
  constexpr const char* end = R"(
    local name, json, row, out = ...
    local function given(text) return text ~= "" and text or nil end
    require "redco.plan".finish(name, { json = given(json), row = tonumber(row), out = given(out) }))";
  const std::string name = script[0];
  script.erase(script.begin());
  run_own(begin, {cluster_.value_or(servers_.value_or("")), devices_.value_or(""),
                  text_of(max_model_shards_), std::to_string(margin_),
                  std::to_string(timeout_.value_or(60)), text_of(n_layouts_), scaling_.value_or(""),
                  text_of(global_batch_), text_of(fit_), out_ ? "true" : "false",
                  objective_.value_or(""), keep_.value_or(""), allow_.value_or("")});
  try {
    engine.run_file(name, script);
  } catch (const ScriptError& error) {
    // The script ends where its training is planned.
    if (std::string_view(error.what()).find("plan: the step is planned") ==
        std::string_view::npos) {
      engine.run_string("require 'redco.native'.finish_plan()", "plan");
      throw;
    }
  }
  run_own(end, {name, json_.value_or(""), text_of(row_), out_.value_or("")});
}

}  // namespace redco
