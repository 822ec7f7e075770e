#pragma once

#include <redco/export.h>
#include <redco/json.h>
#include <redco/tree.h>

#include <map>
#include <string>
#include <vector>

namespace redco {

/// Resolves the options of a script: `defaults` (a dictionary of booleans, numbers, strings, lists
/// of those, and dictionaries), overridden by a TOML file, overridden by command-line arguments.
///
/// If `file` is "", there is no file; an argument --config=FILE selects another. The other
/// arguments are --key=value, --table.key=value, and for booleans also --flag and --no-flag; a
/// hyphen in a key is read as an underscore. Lists are written 1,2,3. A value must have the kind of
/// its default; all numbers are one kind, as in Lua.
///
/// An argument --help, if no option has this name, throws UsageError with all options.
///
/// Throws UsageError, which names the argument or the file and line, for an unknown key (with the
/// nearest known one), a value of another kind, an argument of another form, and a file that is
/// missing or is not TOML.
REDCO_API Tree resolve_options(const Tree& defaults, const std::string& file,
                               const std::vector<std::string>& args);

/// Formats options as TOML, for --help. A description by the option's name follows as a comment.
REDCO_API std::string format_options(const Tree& options,
                                     const std::map<std::string, std::string>& descriptions = {});

/// Reads a TOML file, with the keys of its tables in the order of their names. Throws Error, which
/// names the file and line, for a file that is missing or is not TOML, and for dates and times.
REDCO_API Json::Object read_toml(const std::string& path);

/// Writes a dictionary of plain values as TOML 1.0, which `resolve_options` reads back. Throws
/// Error if the file cannot be written.
REDCO_API void write_toml(const std::string& path, const Tree& values);

/// Writes config.toml to a work folder and creates the folder if it is missing. If another run uses
/// the folder, its file is left unchanged: constructing the Deployer then fails.
REDCO_API void write_config(const std::string& workdir, const Tree& options);

}  // namespace redco
