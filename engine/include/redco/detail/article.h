#pragma once

#include <redco/export.h>

#include <string>

namespace redco {

/// "a Tensor", "an integer": a noun of an error message after its article.
REDCO_API std::string with_article(const std::string& noun);

}  // namespace redco
