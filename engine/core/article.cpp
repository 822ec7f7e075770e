#include <redco/detail/article.h>

namespace redco {

std::string with_article(const std::string& noun) {
  bool begins_with_vowel = !noun.empty() && std::string("AEIOUaeiou").find(noun[0]) != noun.npos;
  return (begins_with_vowel ? "an " : "a ") + noun;
}

}  // namespace redco
