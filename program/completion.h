#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace redco {

/// The shells that completion() knows.
const std::vector<std::string>& completed_shells();

/// The script by which the shell completes this program's command line: its flags, what is known
/// of their values, its commands and Lua files. Made from the table that --help shows.
std::string completion(const CLI::App& program, const std::string& shell);

}  // namespace redco
