// Advice on errors that come from the habits of other languages.

#pragma once

#include <set>
#include <string>

namespace redco::lua {

// The first four return advice to append to a message, with its separator, or "".

/// On a syntax error in `code`. The message is Lua's, with the number of the line.
std::string advice_on_syntax(const std::string& message, const std::string& code);

/// On a name that no script has declared: None, len.
std::string advice_on_name(const std::string& name);

/// On a field that a module or a tensor lacks: Sequential, astype.
std::string advice_on_field(const std::string& name);

/// On an argument that a function lacks, whose arguments are `known`: batch_size, epochs.
std::string advice_on_argument(const std::string& name, const std::set<std::string>& known);

/// Returns the message of an error that Lua itself raised, with advice if there is some: on a call
/// of a table, on a comparison of a tensor and a number. `is_loop` tells whether the error comes
/// from a `for ... in` loop over something that is not a function.
std::string with_advice(const std::string& message, bool is_loop);

}  // namespace redco::lua
