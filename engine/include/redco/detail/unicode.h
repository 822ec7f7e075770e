#pragma once

#include <redco/export.h>

#include <string>
#include <string_view>

namespace redco {

// Characters are those of utf8proc, whose version of Unicode is 15.0 in Debian 12.

/// Returns a UTF-8 text in lower case, as Python's `str.lower` does. A capital sigma that ends a
/// word has a special lower case. Bytes that are not UTF-8 stay.
REDCO_API std::string lower_case(std::string_view text);

/// Returns a UTF-8 text in upper case, as Python's `str.upper` does, but for letters other than the
/// German sharp s whose upper case is several letters: they stay. So do bytes that are not UTF-8.
REDCO_API std::string upper_case(std::string_view text);

/// Returns Unicode's general category of the first character, such as "Lu" for a capital letter;
/// "Cn" (unassigned) if the text does not begin with a character in UTF-8.
REDCO_API std::string_view general_category(std::string_view text);

}  // namespace redco
