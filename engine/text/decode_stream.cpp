#include "utf8.h"

#include <redco/tokenizer.h>

namespace redco {

DecodeStream::DecodeStream(std::shared_ptr<const Tokenizer> tokenizer, DecodeOptions options)
    : tokenizer_(std::move(tokenizer)), options_(options) {
  // What clean-up takes back may have been shown.
  options_.clean_up_tokenization_spaces = false;
}

// The tokens' text as the decoder writes it after those already shown: it may drop a space at the
// start of a text.
std::string DecodeStream::decoded(size_t end) const {
  return tokenizer_->decode({ids_.begin(), ids_.begin() + static_cast<ptrdiff_t>(end)}, options_);
}

std::string DecodeStream::step(int64_t id) {
  ids_.push_back(id);
  std::string before = decoded(shown_), now = decoded(ids_.size());
  if (now.size() <= before.size()) return "";
  // A character has at most four bytes, so that more tokens than that do not complete it.
  bool is_incomplete = now.ends_with(text::replacement_character) && ids_.size() - shown_ <= 4;
  if (is_incomplete) return "";
  std::string fresh = now.substr(before.size());
  // The tokens just shown are the context of the next ones.
  ids_.erase(ids_.begin(), ids_.begin() + static_cast<ptrdiff_t>(shown_));
  shown_ = ids_.size();
  return fresh;
}

std::string DecodeStream::finish() {
  std::string before = decoded(shown_), now = decoded(ids_.size());
  shown_ = 0;
  ids_.clear();
  return now.size() > before.size() ? now.substr(before.size()) : "";
}

}  // namespace redco
