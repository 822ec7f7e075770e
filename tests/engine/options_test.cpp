#include <redco/error.h>
#include <redco/options.h>

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace redco {
namespace {

struct Folder {
  std::string path;
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "optionsXXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    path = pattern;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string file(const std::string& text) const {
    std::ofstream(path + "/config.toml") << text;
    return path + "/config.toml";
  }
};

Tree defaults() {
  return Tree::Dict{{"n_epochs", 3},
                    {"learning_rate", 0.1},
                    {"model", "mlp"},
                    {"shuffle", true},
                    {"no_repeat", false},
                    {"sizes", Tree::List{1, 2}},
                    {"names", Tree::List{"a"}},
                    {"optim", Tree::Dict{{"beta", 0.9}, {"deep", Tree::Dict{{"eps", 1e-8}}}}}};
}

std::string failure(const std::string& file, const std::vector<std::string>& args) {
  try {
    resolve_options(defaults(), file, args);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("arguments change the defaults, and take their kinds") {
  Tree options = resolve_options(
      defaults(), "",
      {"--n-epochs=5", "--learning_rate=1e-3", "--model=cnn", "--no-shuffle", "--sizes=7,8,9",
       "--names=x,y z", "--optim.beta=0.5", "--optim.deep.eps=1", "--no_repeat"});
  CHECK(options.at("n_epochs").as<int64_t>() == 5);
  CHECK(options.at("learning_rate").as<double>() == 1e-3);
  CHECK(options.at("model").as<std::string>() == "cnn");
  CHECK_FALSE(options.at("shuffle").as<bool>());
  CHECK(options.at("no_repeat").as<bool>());  // a flag whose name starts with no_
  CHECK(options.at("sizes").as<Tree::List>().size() == 3);
  CHECK(options.at("sizes").as<Tree::List>()[2].as<int64_t>() == 9);
  CHECK(options.at("names").as<Tree::List>()[1].as<std::string>() == "y z");
  CHECK(options.at("optim").at("beta").as<double>() == 0.5);
  CHECK(options.at("optim").at("deep").at("eps").as<int64_t>() == 1);
  CHECK(resolve_options(defaults(), "", {"--shuffle=false"}).at("shuffle").as<bool>() == false);
}

TEST_CASE("wrong arguments are refused by name") {
  struct Case {
    const char* argument;
    const char* part;
  };
  for (const Case& wrong : {Case{"--learning-rat=1", "did you mean 'learning_rate'"},
                            {"--quux=1", "there are: learning_rate, model"},
                            {"--optim.bet=1", "did you mean 'beta'"},
                            {"--optim=1", "expected a table"},
                            {"--model.x=1", "'model' is not a table"},
                            {"--n_epochs=many", "expected a number"},
                            {"--n_epochs=5x", "expected a number"},
                            {"--n_epochs=", "expected a number"},
                            {"--shuffle=yes", "expected true or false"},
                            {"--sizes=1,b", "expected a list"},
                            {"--model", "expected --model=VALUE"},
                            {"--no-model", "expected --model=VALUE"},
                            {"train", "unexpected argument 'train'"},
                            {"-x", "unexpected argument '-x'"},
                            {"--", "unexpected argument '--'"},
                            {"--=1", "there is no option ''"}}) {
    CAPTURE(wrong.argument);
    std::string message = failure("", {wrong.argument});
    CAPTURE(message);
    CHECK(has(message, wrong.part));
  }
}

TEST_CASE("a file comes before the arguments, --config= names another") {
  Folder folder;
  std::string file = folder.file(
      "n-epochs = 7\nmodel = \"cnn\"\nsizes = [4]\n[optim]\nbeta = 1\n[optim.deep]\neps = 1e-6\n");
  Tree options = resolve_options(defaults(), file, {"--model=mlp"});
  CHECK(options.at("n_epochs").as<int64_t>() == 7);
  CHECK(options.at("model").as<std::string>() == "mlp");
  CHECK(options.at("sizes").as<Tree::List>().size() == 1);
  CHECK(options.at("optim").at("deep").at("eps").as<double>() == 1e-6);
  CHECK(resolve_options(defaults(), "", {"--config=" + file}).at("n_epochs").as<int64_t>() == 7);
  CHECK(has(failure("", {"--config=/nowhere/c.toml"}), "/nowhere/c.toml"));
}

TEST_CASE("a wrong file is refused with its line") {
  struct Case {
    const char* text;
    const char* part;
  };
  for (const Case& wrong : {Case{"\nn_epoch = 3", "config.toml:2: there is no option 'n_epoch'"},
                            {"model = 3", ":1: 'model': expected a string"},
                            {"n_epochs = 1979-05-27", "expected a number"},
                            {"sizes = [1, \"a\"]", "expected a list"},
                            {"optim = 3", "expected a table"},
                            {"[model]\nx = 1", "expected a string"},
                            {"\n\nn_epochs = = 3", "config.toml:3: not TOML"},
                            {"n_epochs = 1\nn_epochs = 2", "not TOML"}}) {
    CAPTURE(wrong.text);
    Folder folder;
    std::string message = failure(folder.file(wrong.text), {});
    CAPTURE(message);
    CHECK(has(message, wrong.part));
  }
}

TEST_CASE("what is written is read back") {
  Folder folder;
  Tree values = defaults();
  values["model"] = "a \"quoted\"\nline \\ \x01";
  values["learning_rate"] = 0.1;
  values["a key"] = 1e300;
  values["whole"] = 3.0;
  std::string path = folder.path + "/config.toml";
  write_toml(path, values);
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  CHECK(has(text.str(), "learning_rate = 0.1\n"));
  CHECK(has(text.str(), "whole = 3.0\n"));
  Tree blank = values;
  blank["model"] = "";
  blank["learning_rate"] = 0.0;
  blank["a key"] = 0.0;
  blank["whole"] = 0.0;
  blank["sizes"] = Tree::List{0};
  Tree read = resolve_options(blank, path, {});
  CHECK(read.at("model").as<std::string>() == values.at("model").as<std::string>());
  CHECK(read.at("learning_rate").as<double>() == 0.1);
  CHECK(read.at("a key").as<double>() == 1e300);
  CHECK(read.at("whole").as<double>() == 3.0);
  CHECK(read.at("sizes").as<Tree::List>().size() == 2);
  CHECK(read.at("optim").at("deep").at("eps").as<double>() == 1e-8);
  CHECK_THROWS_WITH_AS(write_toml(folder.path + "/no/c.toml", values),
                       doctest::Contains("/no/c.toml"), Error);
}

}  // namespace
}  // namespace redco
