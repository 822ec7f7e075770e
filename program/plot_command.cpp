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
  plot->add_option("WORKDIR", workdir, "Its work folder")->required();
  plot->add_option("--out", out, "Write a picture here, .svg or .png, instead of to the terminal")
      ->type_name("FILE")
      ->check(CLI::Validator(
          [](const std::string& path) {
            bool is_known = path.ends_with(".svg") || path.ends_with(".png");
            return is_known ? "" : "the name must end in .svg or .png, got " + path;
          },
          ""));
  plot->add_option("--metric", metrics, "Draw this one; several times for several")
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
    // What the files of a run lack is no matter of Lua's lines.
    if (std::string_view(error.what()).starts_with("plot: ")) throw Error(error.what());
    throw;
  }
}

}  // namespace redco
