// A small server. Requests are lines of the standard input, answers lines of the standard output;
// the model is written in Lua, and is fine-tuned in a thread of its own while it answers.
#include <redco/run_log.h>
#include <redco/safetensors.h>
#include <redco/script_engine.h>
#include <redco/tensor_heap.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <future>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace {

using redco::Tree;

// Where a training tells how far it is: the thread that trains calls it.
class Progress : public redco::Console {
 public:
  void line(std::string_view text) override {
    std::fprintf(stderr, "%.*s\n", int(text.size()), text.data());
  }
  void progress(const redco::ProgressState& state) override {
    if (state.finished) line(redco::format_progress(state, 79));
  }
};

Tree copy_of(const Tree& params) {
  return redco::map_tensors(
      params, [](const std::string&, const at::Tensor& t) { return t.detach().clone(); });
}

// A training that runs, in an engine that nothing else uses.
class Training {
 public:
  Training(const std::string& script, const Tree& params, Tree examples, int64_t n_epochs) {
    engine_.run_file(script);
    result_ = std::async(std::launch::async, [this, params = copy_of(params),
                                              examples = std::move(examples), n_epochs] {
      try {
        engine_.call("train", {params, examples, n_epochs});
      } catch (const redco::ScriptError& error) {
        if (error.kind() != redco::ScriptError::Kind::stopped) throw;
      }
      return copy_of(engine_.call("learned", {}).at(0));
    });
  }
  ~Training() { stop(); }

  bool is_over(std::chrono::milliseconds wait = {}) const {
    return result_.wait_for(wait) == std::future_status::ready;
  }
  // Ends it after its step; it cannot be asked before it has begun.
  void stop() {
    while (result_.valid() && !is_over(std::chrono::milliseconds(10))) engine_.request_stop();
  }
  /// The new parameters; throws what went wrong.
  Tree result() { return result_.get(); }

 private:
  redco::ScriptEngine engine_{{.console = std::make_shared<Progress>()}};
  std::future<Tree> result_;
};

class Server {
 public:
  Server(std::string script, std::string weights)
      : script_(std::move(script)), weights_(std::move(weights)) {
    // Requests are of strangers: what they can reach computes, and for a while only.
    engine_.set_memory_limit(size_t{256} << 20);
    engine_.set_instruction_limit(10'000'000);
    engine_.run_file(script_);
    params_ = engine_.call("new_params", {}).at(0);
    if (!std::filesystem::exists(weights_)) return;
    Tree saved = redco::load_tree(weights_);
    params_ = saved.at("params");
    for (const Tree& label : saved.at("labels").as<Tree::List>())
      labels_.push_back(label.as<std::string>());
  }

  std::string answer(const std::string& request) {
    std::istringstream words(request);
    std::string verb, label, rest;
    words >> verb;
    if (verb == "teach") words >> label;
    std::getline(words >> std::ws, rest);
    if (verb == "classify") return classify(rest);
    if (verb == "teach") return teach(label, rest);
    if (verb == "train") return train(rest.empty() ? 20 : std::stoll(rest));
    if (verb == "stop" || verb == "wait") return finish(verb == "stop");
    return "error: classify TEXT, teach LABEL TEXT, train [EPOCHS], stop, wait";
  }

  // Takes over what a training that is over has learned; to be called between two requests.
  std::string take_over() {
    if (!training_ || !training_->is_over()) return "";
    auto training = std::move(training_);
    params_ = training->result();
    if (!weights_.empty()) {
      Tree::List labels(labels_.begin(), labels_.end());
      redco::save_tree(weights_, Tree::Dict{{"params", params_}, {"labels", labels}});
    }
    return "trained";
  }

 private:
  std::string classify(const std::string& text) {
    at::Tensor probabilities = engine_.call("classify", {params_, text}).at(0).tensor();
    auto known = probabilities.slice(0, 0, int64_t(labels_.size()));
    if (labels_.empty()) return "error: teach me first";
    auto best = known.argmax().item<int64_t>();
    std::ostringstream answer;
    answer.precision(2);
    answer << labels_[best] << " " << std::fixed << known[best].item<double>();
    return answer.str();
  }

  std::string teach(const std::string& label, const std::string& text) {
    if (text.empty()) return "error: teach LABEL TEXT";
    auto place = std::find(labels_.begin(), labels_.end(), label) - labels_.begin();
    if (place == 16) return "error: 16 labels are all";
    if (place == int64_t(labels_.size())) labels_.push_back(label);
    examples_.push_back(Tree::Dict{{"text", text}, {"label", int64_t(place)}});
    return std::to_string(examples_.size()) + " examples";
  }

  std::string train(int64_t n_epochs) {
    if (training_) return "error: a training runs";
    if (examples_.empty()) return "error: teach me first";
    training_ = std::make_unique<Training>(script_, params_, examples_, n_epochs);
    return "training";
  }

  std::string finish(bool now) {
    if (!training_) return "error: no training runs";
    if (now) training_->stop();
    while (!training_->is_over(std::chrono::milliseconds(100))) continue;
    return take_over();
  }

  redco::ScriptEngine engine_{{.restricted = true}};
  std::string script_, weights_;
  Tree params_;
  std::vector<std::string> labels_;
  Tree::List examples_;
  std::unique_ptr<Training> training_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fprintf(stderr, "usage: cpp_embed model.lua [WEIGHTS.safetensors]\n");
    return 2;
  }
  redco::use_tensor_heap();
  try {
    Server server(argv[1], argc > 2 ? argv[2] : "");
    for (std::string request; std::getline(std::cin, request);) {
      // A script's mistake is the answer to one request, and no more.
      try {
        std::string news = server.take_over();
        if (!news.empty()) std::cout << news << "\n";
        std::cout << server.answer(request) << std::endl;
      } catch (const std::exception& error) {
        std::cout << "error: " << error.what() << std::endl;
      }
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cpp_embed: %s\n", error.what());
    return 1;
  }
}
