#pragma once

#include <redco/export.h>
#include <redco/json.h>

#include <string>

namespace redco {

/// Renders a Jinja template with these variables. Unlike in chat templates, lines with a block and
/// the newline at the end stay, and a variable that is not defined is an error. Throws Error, with
/// the line of the template.
REDCO_API std::string render_template(const std::string& source, const Json::Object& variables);

}  // namespace redco
