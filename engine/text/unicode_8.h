// Categories of characters in Unicode 8.0, the version of the tables with which `tokenizers` cleans
// and splits texts for BERT.

#pragma once

#include <utf8proc.h>

namespace redco::text {

/// The category of a character in Unicode 8.0, if it is a nonspacing mark, punctuation, a control
/// or a format character; otherwise that of the current version.
utf8proc_category_t category_in_unicode_8(char32_t c);

}  // namespace redco::text
