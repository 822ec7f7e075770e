// Decodes tokens one by one.

#include <redco/tokenizer.h>

namespace redco {

DecodeStream::DecodeStream(std::shared_ptr<const Tokenizer> tokenizer, DecodeOptions options)
    : tokenizer_(std::move(tokenizer)), options_(options) {
  // Clean-up could change text that was already returned.
  options_.clean_up_tokenization_spaces = false;
}

// The text of the tokens that have not been shown, decoded after the shown ones, because a decoder
// may drop a space at the start of a text.
std::string DecodeStream::fresh() const {
  auto first_new = ids_.begin() + ptrdiff_t(shown_);
  std::string before = tokenizer_->decode({ids_.begin(), first_new}, options_);
  std::string now = tokenizer_->decode(ids_, options_);
  if (now.starts_with(before)) return now.substr(before.size());
  // The prefix changed: new byte tokens make the run with the shown ones invalid UTF-8, which
  // decodes to different text.
  return tokenizer_->decode({first_new, ids_.end()}, options_);
}

std::string DecodeStream::step(int64_t id) {
  ids_.push_back(id);
  if (tokenizer_->ends_inside_character(ids_, options_)) return "";
  std::string text = fresh();
  if (text.empty()) return "";
  // The tokens just shown become the context of the next ones.
  ids_.erase(ids_.begin(), ids_.begin() + ptrdiff_t(shown_));
  shown_ = ids_.size();
  return text;
}

std::string DecodeStream::finish() {
  std::string text = fresh();
  shown_ = 0;
  ids_.clear();
  return text;
}

}  // namespace redco
