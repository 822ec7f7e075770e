#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace redco {

/// The shells that completion() supports.
const std::vector<std::string>& completed_shells();

/// Returns the completion script of a shell for this program's command line: flags, known values,
/// commands and Lua files. Generated from the options that --help shows.
std::string completion(const CLI::App& program, const std::string& shell);

}  // namespace redco
