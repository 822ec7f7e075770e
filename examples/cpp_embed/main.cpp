// The engine inside a C++ program: first with a script for the model, then with no Lua at all.
#include <redco/engine.h>
#include <redco/predictor.h>
#include <redco/run_log.h>
#include <redco/trainer.h>

#include <ATen/ATen.h>

#include <charconv>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace {

// Where the engine reports: here a line now and then on the standard output.
class Report : public redco::Console {
 public:
  void line(std::string_view text) override {
    std::printf("%.*s\n", int(text.size()), text.data());
  }
  void progress(const redco::ProgressState& state) override {
    if (state.finished) line(redco::format_progress(state, 120));
  }
};

struct Arguments {
  std::string script;
  int64_t max_steps = 300;
  int64_t global_batch_size = 32;
};

// Nothing when the arguments are wrong.
std::optional<Arguments> parse(int argc, char** argv) {
  Arguments args;
  for (int i = 1; i < argc; ++i) {
    std::string_view word = argv[i];
    auto positive = [&](std::string_view flag, int64_t& value) {
      if (!word.starts_with(flag)) return false;
      const char* end = word.data() + word.size();
      auto [rest, error] = std::from_chars(word.data() + flag.size(), end, value);
      return error == std::errc() && rest == end && value > 0;
    };
    if (positive("--max-steps=", args.max_steps)) continue;
    if (positive("--global-batch-size=", args.global_batch_size)) continue;
    if (word.starts_with("-") || !args.script.empty()) return std::nullopt;
    args.script = word;
  }
  if (args.script.empty()) return std::nullopt;
  return args;
}

struct Point {
  float x, y;
  int64_t label;  // whether it lies outside the unit circle
};

at::Tensor coordinates(const redco::ExampleBatch<Point>& points) {
  at::Tensor result = at::empty({int64_t(points.size()), 2});
  auto to = result.accessor<float, 2>();
  for (size_t i = 0; i < points.size(); ++i) {
    to[int64_t(i)][0] = points[i].get().x;
    to[int64_t(i)][1] = points[i].get().y;
  }
  return result;
}

redco::Tree collate(const redco::ExampleBatch<Point>& points) {
  at::Tensor labels = at::empty({int64_t(points.size())}, at::kLong);
  for (size_t i = 0; i < points.size(); ++i) labels[int64_t(i)] = points[i].get().label;
  return redco::Tree::Dict{{"points", coordinates(points)}, {"labels", labels}};
}

at::Tensor forward(const redco::Tree& params, const at::Tensor& points) {
  const auto& layers = params.as<redco::Tree::List>();
  auto linear = [](const redco::Tree& layer, const at::Tensor& x) {
    return at::linear(x, layer.at("weight").tensor(), layer.at("bias").tensor());
  };
  return linear(layers[1], linear(layers[0], points).tanh());
}

// Runs the script; returns the parameters it made, and the labels it gave the points.
redco::Tree run_script(const std::string& path, const std::shared_ptr<Report>& report,
                       const at::Tensor& points, const at::Tensor& labels) {
  redco::Engine engine({.console = report});
  engine.register_function("log", [&](const std::vector<redco::Tree>& args) {
    report->line("the script says: " + args.at(0).as<std::string>());
    return std::vector<redco::Tree>{};
  });
  engine.run_file(path);

  // Tensors are shared, not copied: the script writes into the program's own.
  engine.call("fill_with_labels", {points, labels});

  redco::Tree params = engine.get_global("params");
  at::Tensor by_script = engine.call("forward", {params, points}).at(0).tensor();
  if (!at::allclose(by_script, forward(params, points), 1e-5, 1e-6))
    throw redco::Error("the script and the program disagree");

  // What goes wrong in a script arrives with its file and line.
  try {
    engine.call("forward", {params, at::zeros({4, 3})});
  } catch (const redco::ScriptError& error) {
    report->line(std::string("as expected: ") + error.what());
  }
  return params;
}

// Trains without Lua; returns whether it learned.
bool train(const Arguments& args, const std::shared_ptr<Report>& report, redco::Tree params,
           const std::vector<Point>& points) {
  auto deployer = std::make_shared<redco::Deployer>(
      redco::DeployerOptions{.seed = 42, .verbose = true, .console = report});
  redco::Trainer trainer({
      .deployer = deployer,
      .params = std::move(params),
      .loss_fn = [](at::Generator, const redco::TrainState&, const redco::Tree& p,
                    const redco::Tree& batch, bool) -> redco::Loss {
        at::Tensor logits = forward(p, batch.at("points").tensor());
        return {at::cross_entropy_loss(logits, batch.at("labels").tensor())};
      },
      .optimizer = redco::adamw({.learning_rate = 1e-2}),
  });
  redco::Dataset examples = redco::dataset(points, collate);
  double loss_before = trainer.eval_loss(examples, 256);
  int64_t steps_per_epoch = (examples.size + args.global_batch_size - 1) / args.global_batch_size;
  trainer.fit({.train_examples = examples,
               .per_device_batch_size = args.global_batch_size,
               .n_epochs = (args.max_steps + steps_per_epoch - 1) / steps_per_epoch,
               .max_steps = args.max_steps});
  double loss = trainer.eval_loss(examples, 256);

  redco::Predictor predictor = trainer.get_default_predictor(
      [](at::Generator, const redco::Tree& p, const redco::Tree& batch) -> redco::Tree {
        return forward(p, batch.at("points").tensor()).argmax(-1);
      });
  std::vector<redco::Tree> preds = predictor.predict(examples, 256, trainer.state().params);
  double right = 0;
  for (size_t i = 0; i < points.size(); ++i)
    right += preds[i].tensor().item<int64_t>() == points[i].label;
  double accuracy = right / double(points.size());
  std::printf("loss %.4f, it was %.4f; accuracy %.3f\n", loss, loss_before, accuracy);
  bool is_short = args.max_steps < 12 * steps_per_epoch;
  return loss < loss_before && (accuracy > 0.9 || is_short);
}

}  // namespace

int main(int argc, char** argv) {
  std::optional<Arguments> args = parse(argc, argv);
  if (!args) {
    std::fprintf(stderr, "usage: cpp_embed model.lua [--max-steps=N] [--global-batch-size=N]\n");
    return 2;
  }
  try {
    auto report = std::make_shared<Report>();
    at::manual_seed(0);
    at::Tensor coordinates = at::randn({512, 2});
    at::Tensor labels = at::empty({512}, at::kLong);
    redco::Tree params = run_script(args->script, report, coordinates, labels);

    std::vector<Point> points;
    for (int64_t i = 0; i < 512; ++i)
      points.push_back({coordinates[i][0].item<float>(), coordinates[i][1].item<float>(),
                        labels[i].item<int64_t>()});
    return train(*args, report, std::move(params), points) ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cpp_embed: %s\n", error.what());
    return 1;
  }
}
