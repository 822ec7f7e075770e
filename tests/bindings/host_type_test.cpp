// ScriptEngine::register_type: classes of the program in Lua.
#include <redco/error.h>
#include <redco/script_engine.h>

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace redco {
namespace {

struct Named {
  std::string name;
  const std::string& called() const noexcept { return name; }
};

class Camera : public Named {
 public:
  explicit Camera(std::string name) : Named{std::move(name)} { ++alive; }
  Camera(std::string name, double exposure) : Camera(std::move(name)) { set_exposure(exposure); }
  ~Camera() { --alive; }
  Camera(const Camera&) = delete;
  Camera& operator=(const Camera&) = delete;

  at::Tensor shoot(int width, int64_t height) const { return at::full({height, width}, exposure_); }
  double exposure() const { return exposure_; }
  void set_exposure(double seconds) {
    if (seconds <= 0) throw std::invalid_argument("no exposure of " + std::to_string(seconds));
    exposure_ = seconds;
  }
  void pair_with(const std::shared_ptr<Camera>& other) { other_ = other; }
  std::shared_ptr<Camera> other() const { return other_.lock(); }
  bool is_brighter(const Camera& than) const { return exposure_ > than.exposure_; }
  Tree settings(const Tree& more) const { return Tree::Dict{{"name", name}, {"more", more}}; }

  uint8_t gain = 1;
  const int serial = 7;
  static inline int alive = 0;

 private:
  double exposure_ = 0.01;
  std::weak_ptr<Camera> other_;
};

struct Stranger {};

void register_camera(ScriptEngine& engine) {
  engine.register_type<Camera>("Camera")
      .constructor<std::string>()
      .method("shoot", &Camera::shoot)
      .method("pair_with", &Camera::pair_with)
      .method("is_brighter", &Camera::is_brighter)
      .method("settings", &Camera::settings)
      .method("called", &Camera::called)
      .method("rename", [](Camera& self, const std::string& name) { self.name = name; })
      .method("break_down", [](Camera&) { throw 42; })
      .method("stranger", [](Camera&) { return std::make_shared<Stranger>(); })
      .property("exposure", &Camera::exposure, &Camera::set_exposure)
      .property("other", &Camera::other)
      .property("gain", &Camera::gain)
      .property("serial", &Camera::serial);
}

std::string failure(ScriptEngine& engine, const std::string& code) {
  try {
    engine.run_string(code, "piece");
  } catch (const ScriptError& error) {
    return error.what();
  }
  return "nothing failed";
}

TEST_CASE("objects are made, used and freed from Lua") {
  for (bool restricted : {false, true}) {
    ScriptEngine engine({.restricted = restricted});
    register_camera(engine);
    engine.run_string(R"(
      local front, back = Camera("front"), Camera("back")
      assert(tostring(front) == "Camera" and front ~= back and front:called() == "front")
      assert(front.exposure == 0.01 and front.gain == 1 and front.serial == 7)
      front.exposure, front.gain = 0.5, 255
      assert(front:shoot(3, 2):sum():item() == 3 and front.gain == 255)
      assert(front:is_brighter(back) and not back:is_brighter(front))
      assert(front.other == nil)
      front:pair_with(back)
      assert(front.other == back and front.other:called() == "back")
      assert(front:settings({ 1, 2 }).more[2] == 2 and front:settings(nil).more == nil)
      front:rename "side"
      assert(front:called() == "side")
      local shoot = front.shoot
      assert(shoot(back, 1, 1):item() > 0))");
    CHECK(Camera::alive > 0);
  }
  CHECK(Camera::alive == 0);
}

TEST_CASE("objects of the program are shared with Lua") {
  auto camera = std::make_shared<Camera>("front");
  {
    ScriptEngine one({.strict = false}), two({.strict = false});
    for (ScriptEngine* engine : {&one, &two}) {
      register_camera(*engine);
      engine->set_global("camera", camera);
      engine->run_string("camera.exposure = camera.exposure * 2");
    }
    CHECK(camera.use_count() == 3);
    CHECK(camera->exposure() == doctest::Approx(0.04));
    one.run_string("camera = nil");
    two.set_global("camera", std::shared_ptr<Camera>());
    one.run_string("assert(camera == nil) collectgarbage() collectgarbage()");
    two.run_string("assert(camera == nil) collectgarbage() collectgarbage()");
    CHECK(camera.use_count() == 1);
    // Lua may hold it longer than the program.
    one.set_global("camera", camera);
    camera.reset();
    one.run_string("assert(camera:called() == 'front')");
  }
  CHECK(Camera::alive == 0);
}

TEST_CASE("a constructor may be any function") {
  ScriptEngine engine;
  engine.register_type<Camera>("Camera")
      .constructor([](const std::string& name, double exposure) {
        return std::make_shared<Camera>(name, exposure);
      })
      .property("exposure", &Camera::exposure);
  engine.run_string("assert(Camera('front', 2).exposure == 2)");
  CHECK(failure(engine, "Camera('front', -2)") == "piece:1: no exposure of -2.000000");
}

TEST_CASE("a type whose name begins with a vowel") {
  ScriptEngine engine;
  engine.register_type<Camera>("Eye").constructor<std::string>().method("called", &Camera::called);
  CHECK(
      failure(engine, "Eye('front').called(1)") ==
      "piece:1: Eye:called: self: expected an Eye, got number 1; methods are called with a colon");
  CHECK(failure(engine, "Eye('front'):look()") == "piece:1: an Eye has no 'look'");
}

TEST_CASE("wrong uses are errors that say what was meant") {
  ScriptEngine engine;
  register_camera(engine);
  engine.set_global("camera", std::make_shared<Camera>("front"));
  const std::pair<const char*, const char*> wrong[] = {
      {"camera.shoot(1, 2)",
       "Camera:shoot: self: expected a Camera, got number 1; methods are called with a colon"},
      {"camera.shoot()", "Camera:shoot: self: expected a Camera, got nothing"},
      {"camera.rename()", "Camera:rename: self: expected a Camera, got nothing"},
      {"camera:shoot(1)", "Camera:shoot: argument 2: expected an integer, got nothing"},
      {"camera:shoot(1, 2, 3)", "Camera:shoot takes 2 arguments, not 3"},
      {"camera:shoot('a', 2)", "Camera:shoot: argument 1: expected an integer, got \"a\""},
      {"camera:shoot(1.5, 2)", "Camera:shoot: argument 1: expected an integer, got number 1.5"},
      {"camera:shoot(2^40, 2)", "argument 1: expected an integer from -2147483648 to 2147483647"},
      {"camera:is_brighter({})", "argument 1: expected a Camera, got table"},
      {"camera:is_brighter(io.stdout)", "argument 1: expected a Camera, got userdata"},
      {"camera:pair_with(nil)", "argument 1: expected a Camera, got nil"},
      {"camera:rename(1)", "Camera:rename: argument 1: expected a string, got number 1"},
      {"camera:settings(print)", "Camera:settings: argument 1"},
      {"camera:shot()", "a Camera has no 'shot'; did you mean 'shoot'?"},
      {"return camera[1]", "a Camera has no field number 1"},
      {"camera.gain = 256", "Camera.gain: argument 1: expected an integer from 0 to 255, got 256"},
      {"camera.gain = 'a'", "Camera.gain: argument 1: expected an integer, got \"a\""},
      {"camera.exposure = -1", "piece:1: no exposure of -1.0"},
      {"camera.serial = 1", "Camera.serial is read-only"},
      {"camera.other = camera", "Camera.other is read-only"},
      {"camera.shoot = 1", "Camera.shoot is read-only"},
      {"camera.gian = 1", "a Camera has no 'gian'; did you mean 'gain'?"},
      {"Camera()", "Camera: argument 1: expected a string, got nothing"},
      {"Camera('a', 'b')", "Camera takes 1 argument, not 2"},
      {"camera:break_down()", "Camera:break_down threw an exception that is not a std::exception"},
      {"camera:stranger()", "is not registered in this engine; call register_type first"},
      {"setmetatable(camera, {})", "table expected"},
      {"getmetatable(camera).__gc(camera)", "attempt to index a boolean value"},
      {"return #camera", "length"},
      {"return camera + 1", "arithmetic"},
  };
  for (auto [code, text] : wrong) {
    CAPTURE(code);
    CHECK_MESSAGE(failure(engine, code).find(text) != std::string::npos, failure(engine, code));
  }
  engine.run_string("assert(camera:called() == 'front')");

  CHECK_THROWS_WITH(engine.register_type<Camera>("Again"), doctest::Contains("'Camera'"));
  CHECK_THROWS_WITH(engine.register_type<Stranger>("Camera"), doctest::Contains("already"));
  CHECK_THROWS_WITH(engine.register_type<Stranger>("a.b"),
                    doctest::Contains("is not a name of a global"));
  CHECK_THROWS_WITH(engine.set_global("s", std::make_shared<Stranger>()),
                    doctest::Contains("call register_type first"));
  auto type = engine.register_type<Stranger>("Stranger");
  type.method("f", [](Stranger&) {});
  CHECK_THROWS_WITH(type.method("f", [](Stranger&) {}),
                    doctest::Contains("Stranger:f is registered twice"));
  CHECK_THROWS_WITH(type.property("f", [](Stranger&) { return 1; }),
                    doctest::Contains("Stranger.f is registered twice"));
  CHECK_THROWS_WITH(type.method("", [](Stranger&) {}),
                    doctest::Contains("is not a name of a global"));
}

TEST_CASE("functions have the parameters of C++") {
  ScriptEngine engine;
  engine.register_function("add", [](double a, double b) { return a + b; });
  engine.register_function("times", [](const std::string& text, int n) {
    std::string all;
    for (int i = 0; i < n; ++i) all += text;
    return all;
  });
  engine.register_function("sum", [](const at::Tensor& t) { return t.sum(); });
  engine.register_function(
      "is_even", +[](int64_t n) { return n % 2 == 0; });
  int n_calls = 0;
  engine.register_function("count", [&n_calls]() mutable { ++n_calls; });
  engine.register_function("untyped", [](const std::vector<Tree>& args) -> std::vector<Tree> {
    std::vector<Tree> copies = args;
    return {args.at(0).as<double>() + copies.at(1).as<double>(), int64_t(args.size())};
  });
  engine.run_string(R"(
    assert(add(1.5, 2.5) == 4 and add(1, 2) == 3 and add(1, 2.5) == 3.5 and add(2^53, 1LL) > 0)
    assert(times("ab", 3) == "ababab" and is_even(4) and not is_even(3))
    assert(sum(require("redco.torch").ones { 2, 3 }):item() == 6)
    count() count()
    local total, n = untyped(1, 2)
    assert(total == 3 and n == 2 and untyped(1, 2.5) == 3.5))");
  CHECK(n_calls == 2);
  CHECK(engine.call("add", {1, 2}).at(0).as<double>() == 3);
  const std::pair<const char*, const char*> wrong[] = {
      {"add(1, 'b')", "piece:1: add: argument 2: expected a number, got \"b\""},
      {"add(1)", "add: argument 2: expected a number, got nothing"},
      {"add(1, 2, 3)", "add takes 2 arguments, not 3"},
      {"times('a', 1.5)", "times: argument 2: expected an integer, got number 1.5"},
      {"sum({})", "sum: argument 1: expected a Tensor, got table"},
      {"count(1)", "count takes 0 arguments, not 1"},
      {"untyped('a', 2)", "expected a number in this place of the tree, found a string"},
  };
  for (auto [code, text] : wrong) {
    CAPTURE(code);
    CHECK_MESSAGE(failure(engine, code).find(text) != std::string::npos, failure(engine, code));
  }
  CHECK_THROWS_WITH(engine.register_function("a.b", [] {}),
                    doctest::Contains("is not a name of a global"));
}

}  // namespace
}  // namespace redco
