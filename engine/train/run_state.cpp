// Converts the state of a run to and from the fields of info.json.

#include "run_state.h"

#include <redco/detail/article.h>
#include <redco/error.h>

#include <cmath>

namespace redco::train {

namespace {

// Drops non-finite numbers, which JSON cannot represent.
Tree to_tree(const std::map<std::string, double>& metrics) {
  Tree::Dict dict;
  for (const auto& [name, value] : metrics)
    if (std::isfinite(value)) dict[name] = value;
  return dict;
}

double number(const std::string& name, const Tree& value) {
  if (value.is<int64_t>()) return double(value.as<int64_t>());
  require(value.is<double>(), "last_ckpt_info: ", name, " is ", with_article(value.kind()),
          ", expected a number");
  return value.as<double>();
}

// Typed access to the info of a checkpoint, which must outlive the object.
class Fields {
 public:
  explicit Fields(const Tree& info) {
    if (info.is_none()) return;
    require(info.is<Tree::Dict>(), "last_ckpt_info: ", info.kind(),
            " where a dictionary was expected");
    dict_ = &info.as<Tree::Dict>();
  }

  const Tree* find(const std::string& name) const {
    if (dict_ == nullptr) return nullptr;
    auto found = dict_->find(name);
    return found == dict_->end() || found->second.is_none() ? nullptr : &found->second;
  }
  int64_t integer(const std::string& name) const {
    const Tree* value = find(name);
    if (value == nullptr) return 0;
    require(value->is<int64_t>() && value->as<int64_t>() >= 0, "last_ckpt_info: ", name,
            " is no whole number of at least 0");
    return value->as<int64_t>();
  }
  std::map<std::string, double> metrics(const std::string& name) const {
    std::map<std::string, double> result;
    for (const auto& [key, each] : dict(name)) result[key] = number(key, each);
    return result;
  }
  std::map<std::string, std::string> texts(const std::string& name) const {
    std::map<std::string, std::string> result;
    for (const auto& [key, each] : dict(name)) {
      require(each.is<std::string>(), "last_ckpt_info: ", name, ": ", key, " is ",
              with_article(each.kind()), ", expected a string");
      result[key] = each.as<std::string>();
    }
    return result;
  }

 private:
  Tree::Dict dict(const std::string& name) const {
    const Tree* value = find(name);
    if (value == nullptr) return {};
    require(value->is<Tree::Dict>(), "last_ckpt_info: ", name, " is ", with_article(value->kind()),
            ", expected a dictionary");
    return value->as<Tree::Dict>();
  }

  const Tree::Dict* dict_ = nullptr;  ///< null: there is no info
};

}  // namespace

Tree::Dict to_info(const RunState& state, bool is_epoch_done) {
  Tree::Dict info;
  info["epoch_idx"] = state.epoch_idx;
  info["is_epoch_done"] = is_epoch_done;
  info["epoch_size"] = state.epoch_size;
  info["n_examples"] = state.n_examples;
  info["metrics"] = to_tree(state.metrics);
  info["min_metrics"] = to_tree(state.min_metrics);
  info["max_metrics"] = to_tree(state.max_metrics);
  info["best_places"] = Tree::Dict(state.best_places.begin(), state.best_places.end());
  if (state.early_stopping_best) info["early_stopping_best"] = *state.early_stopping_best;
  info["n_without_improvement"] = state.n_without_improvement;
  info["is_evaluation_due"] = state.is_evaluation_due;
  Tree::List left_out;
  for (const auto& [epoch, place] : state.left_out_batches)
    left_out.push_back(Tree::List{epoch, place});
  info["left_out_batches"] = std::move(left_out);
  return info;
}

int64_t step_of(const Tree& info, int64_t otherwise) {
  Fields fields(info);
  return fields.find("step") == nullptr ? otherwise : fields.integer("step");
}

std::optional<LossScale> loss_scale_of(const Tree& info, std::optional<LossScale> otherwise) {
  const Tree* found = Fields(info).find("loss_scale");
  if (found == nullptr) return otherwise;
  Fields fields(*found);
  const Tree* scale = fields.find("scale");
  require(scale != nullptr, "last_ckpt_info: loss_scale has no scale");
  return LossScale{number("loss_scale: scale", *scale), fields.integer("good_steps")};
}

RunState run_state_of(const Tree& info) {
  RunState state;
  Fields fields(info);
  state.metrics = fields.metrics("metrics");
  state.min_metrics = fields.metrics("min_metrics");
  state.max_metrics = fields.metrics("max_metrics");
  state.best_places = fields.texts("best_places");
  if (const Tree* best = fields.find("early_stopping_best"))
    state.early_stopping_best = number("early_stopping_best", *best);
  state.n_without_improvement = fields.integer("n_without_improvement");
  const Tree* left_out = fields.find("left_out_batches");
  // An empty list comes back from JSON as an empty dictionary.
  require(left_out == nullptr || left_out->is<Tree::List>() ||
              (left_out->is<Tree::Dict>() && left_out->as<Tree::Dict>().empty()),
          "last_ckpt_info: left_out_batches is not a list");
  if (left_out != nullptr && left_out->is<Tree::List>())
    for (const Tree& batch : left_out->as<Tree::List>()) {
      bool is_pair = batch.is<Tree::List>() && batch.as<Tree::List>().size() == 2;
      require(is_pair, "last_ckpt_info: left_out_batches has ", with_article(batch.kind()),
              ", expected pairs of integers");
      const auto& pair = batch.as<Tree::List>();
      state.left_out_batches.emplace(pair[0].as<int64_t>(), pair[1].as<int64_t>());
    }
  if (fields.find("epoch_idx") == nullptr) return state;
  state.epoch_idx = fields.integer("epoch_idx");
  const Tree* is_done = fields.find("is_epoch_done");
  if (fields.find("n_examples") == nullptr || (is_done != nullptr && is_done->as<bool>())) {
    ++state.epoch_idx;
    return state;
  }
  const Tree* is_due = fields.find("is_evaluation_due");
  state.is_evaluation_due = is_due != nullptr && is_due->as<bool>();
  state.epoch_size = fields.integer("epoch_size");
  state.n_examples = fields.integer("n_examples");
  return state;
}

}  // namespace redco::train
