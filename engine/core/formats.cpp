// Checks the numbers of this program's file formats.

#include <redco/formats.h>

namespace redco {

void check_format(const std::string& where, int64_t format, int64_t newest) {
  if (format >= 1 && format <= newest) return;
  if (format > newest)
    throw UnknownFormat(where + "it was written by a newer redco-lua: its format is " +
                        std::to_string(format) + ", this program reads up to " +
                        std::to_string(newest) + ". Use the version that wrote it, or a newer one");
  throw UnknownFormat(where + "its field format is " +
                      (format == 0 ? "missing" : std::to_string(format)) + ", expected 1 to " +
                      std::to_string(newest));
}

}  // namespace redco
