#pragma once

#include <redco/export.h>
#include <redco/tree.h>

#include <string>
#include <vector>

namespace redco {

/// The options of a script: `defaults` (a dictionary of booleans, numbers, strings, lists of those,
/// and dictionaries), changed by a TOML file, changed by command-line arguments.
///
/// `file` may be "": no file; an argument --config=FILE names another. The other arguments are
/// --key=value, --table.key=value, and for booleans also --flag and --no-flag; in keys a hyphen
/// is an underscore. A list is written 1,2,3. A value takes the kind of its default; numbers are
/// one kind, as in Lua.
///
/// Throws UsageError, naming the argument or the file and line: for an unknown key (with the
/// nearest one), a value of another kind, an argument that is none of these, a file that is missing
/// or is not TOML.
REDCO_API Tree resolve_options(const Tree& defaults, const std::string& file,
                               const std::vector<std::string>& args);

/// Writes a dictionary of plain values as TOML 1.0, so that `resolve_options` reads it back.
/// Throws Error when the file cannot be written.
REDCO_API void write_toml(const std::string& path, const Tree& values);

/// Writes config.toml to a work folder, which is made if it is missing. Leaves the file of another
/// run that uses the folder as it is: making the Deployer then fails.
REDCO_API void write_config(const std::string& workdir, const Tree& options);

}  // namespace redco
