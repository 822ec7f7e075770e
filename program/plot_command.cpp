// The command `redco-lua plot`.

#include "plot_command.h"

#include "terminal.h"

#include <redco/error.h>
#include <redco/script_engine.h>

#include <unistd.h>
#include <CLI/CLI.hpp>
#include <string_view>

namespace redco {

void PlotCommand::add_to(CLI::App& program) {
  CLI::App* plot = program.add_subcommand("plot", "Draw the metrics of a run");
  plot->add_option("WORKDIR", workdir, "The work folder of the run")->required();
  plot->add_option("--out", out,
                   "Write a picture, .svg or .png, instead of drawing on the terminal")
      ->type_name("FILE")
      ->check(CLI::Validator(
          [](const std::string& path) {
            bool is_known = path.ends_with(".svg") || path.ends_with(".png");
            return is_known ? "" : "the name must end in .svg or .png, got " + path;
          },
          ""));
  plot->add_option("--metric", metrics, "Draw only this metric; may be repeated")
      ->type_name("NAME")
      ->allow_extra_args(false);
}

void PlotCommand::run(ScriptEngine& engine) const {
  std::vector<std::string> args{workdir, out.value_or(""),
                                std::to_string(terminal_width(STDOUT_FILENO))};
  args.insert(args.end(), metrics.begin(), metrics.end());
  constexpr const char* code = R"(
    local workdir, out, width = ...
    local metrics = { select(4, ...) }
    require "redco.plot" (workdir, out ~= "" and out or nil, tonumber(width), metrics))";
  try {
    engine.run_string(code, "plot", args);
  } catch (const ScriptError& error) {
    // An error about the run's files needs no Lua line.
    if (std::string_view(error.what()).starts_with("plot: ")) throw Error(error.what());
    throw;
  }
}

}  // namespace redco
