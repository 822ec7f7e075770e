// Renders templates of texts, such as those of evaluation tasks.

#include "jinja.h"

#include <redco/detail/text_template.h>

namespace redco {

std::string render_template(const std::string& source, const Json::Object& variables) {
  constexpr text::jinja::Dialect dialect{"template", false, true, true};
  text::jinja::Value::Named given;
  for (const auto& [name, value] : variables)
    given.emplace_back(name, text::jinja::from_json(value));
  return text::jinja::render(text::jinja::parse(source, dialect), given, nullptr, dialect);
}

}  // namespace redco
