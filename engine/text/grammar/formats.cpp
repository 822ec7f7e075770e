// Formats of texts in JSON schemas, as regular expressions.

#include "language.h"

#include <map>

namespace redco::text {

namespace {

// RFC 3339: a date of the calendar, and a time with its offset, without leap seconds.
const char* const year = "(?:000[1-9]|00[1-9]\\d|0[1-9]\\d\\d|[1-9]\\d{3})";
const char* const time =
    "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,9})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)";

// RFC 1123.
const char* const label = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?";

const char* const byte = "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)";
const char* const group = "[0-9A-Fa-f]{1,4}";  // of an IPv6 address

std::string date_pattern() {
  const std::string day =
      "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|"
      "02-(?:0[1-9]|1\\d|2[0-8]))";
  const std::string leap_day =
      "(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29";
  return "(?:" + std::string(year) + day + "|" + leap_day + ")";
}

std::string ipv4() { return "(?:" + std::string(byte) + "\\.){3}" + byte; }

// An IPv6 address: eight groups, of which :: replaces one or more groups of 0. The last two groups
// may be an IPv4 address.
std::string ipv6() {
  const std::string one(group), last = "(?:" + one + ":" + one + "|" + ipv4() + ")";
  auto times = [](const std::string& text, int least, int most) {
    return "(?:" + text + "){" + std::to_string(least) + "," + std::to_string(most) + "}";
  };
  std::string all = times(one + ":", 6, 6) + last;
  for (int before = 0; before <= 7; ++before) {  // groups before the ::
    const std::string head =
        before == 0 ? "::" : times(one + ":", before - 1, before - 1) + one + "::";
    const int most = 7 - before;  // groups after it
    if (most >= 2) all += "|" + head + times(one + ":", 0, most - 2) + last;
    all += "|" + head + (most >= 1 ? "(?:" + one + ")?" : "");
  }
  return all;
}

std::map<std::string, std::string, std::less<>> patterns() {
  // A host name has at most 253 bytes: eight labels of 30. Labels with -- as third and fourth
  // characters encode other letters, and are not all valid, so none of them matches.
  const std::string l = "[A-Za-z0-9]", m = "[A-Za-z0-9-]";
  const std::string part = l + "(?:" + m + "{0,2}" + l + "|" + m + "(?:" + l + m + "|-" + l + ")" +
                           m + "{0,25}" + l + ")?";
  const std::string host = part + "(?:\\." + part + "){0,7}";
  const std::string atom = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+";
  // RFC 3986.
  const std::string escaped = "%[0-9A-Fa-f]{2}", plain = "[A-Za-z0-9._~!$&'()*+,;=-]";
  const std::string segment = "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|" + escaped + ")";
  const std::string name = "(?:" + plain + "|" + escaped + ")";
  const std::string authority = "(?:(?:" + plain + "|" + escaped + "|:)*@)?(?:\\[(?:" + ipv6() +
                                ")\\]|" + name + "*)(?::\\d*)?";
  const std::string tail = "(?:\\?(?:" + segment + "|[/?])*)?(?:#(?:" + segment + "|[/?])*)?";
  const std::string rooted =
      "//" + authority + "(?:/" + segment + "*)*|/(?:" + segment + "+(?:/" + segment + "*)*)?";
  const std::string uri =
      "[A-Za-z][A-Za-z0-9+.-]*:(?:" + rooted + "|" + segment + "+(?:/" + segment + "*)*|)" + tail;
  const std::string first = "(?:" + plain + "|" + escaped + "|@)";  // without :
  const std::string relative = "(?:" + rooted + "|" + first + "+(?:/" + segment + "*)*|)" + tail;
  const std::string hours = "\\d+H(?:\\d+M(?:\\d+S)?)?|\\d+M(?:\\d+S)?|\\d+S";
  const std::string days = "\\d+Y(?:\\d+M(?:\\d+D)?)?|\\d+M(?:\\d+D)?|\\d+D";
  return {
      {"date", date_pattern()},
      {"time", time},
      {"date-time", date_pattern() + "T" + time},
      {"duration", "P(?:\\d+W|T(?:" + hours + ")|(?:" + days + ")(?:T(?:" + hours + "))?)"},
      {"email", atom + "(?:\\." + atom + ")*@" + label + "(?:\\." + label + ")+"},
      {"hostname", host},
      {"ipv4", ipv4()},
      {"ipv6", ipv6()},
      {"uuid", "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"},
      {"uri", uri},
      {"uri-reference", uri + "|" + relative},
      {"json-pointer", "(?:/(?:[^~/]|~[01])*)*"},
      {"byte", "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"},
  };
}

}  // namespace

std::string pattern_of_format(std::string_view format) {
  static const auto all = patterns();
  const auto found = all.find(format);
  if (found == all.end()) return "";
  return "^(?:" + found->second + ")$";
}

}  // namespace redco::text
