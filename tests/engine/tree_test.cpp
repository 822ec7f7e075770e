#include <redco/error.h>
#include <redco/tree.h>

#include <ATen/ops/full.h>
#include <doctest/doctest.h>

using redco::Tree;

namespace {
at::Tensor number(double value) { return at::full({1}, value); }
}  // namespace

TEST_CASE("leaves come in the byte order of keys, lists from 1") {
  Tree tree;
  tree["b"] = number(1);
  tree["a"] = Tree::List{number(2), number(3)};
  tree["B"] = "text";
  std::vector<std::string> paths;
  redco::for_each_leaf(tree, [&](const std::string& path, const Tree&) { paths.push_back(path); });
  CHECK(paths == std::vector<std::string>{"B", "a.1", "a.2", "b"});
  CHECK(redco::named_tensors(tree).size() == 3);
}

TEST_CASE("with_tensors refuses a list of the wrong length") {
  Tree tree;
  tree["a"] = number(1);
  CHECK_THROWS_WITH_AS(redco::with_tensors(tree, {}),
                       "with_tensors: no tensor left for 'a': the tree has more than the 0 given",
                       redco::Error);
  CHECK_THROWS_AS(redco::with_tensors(tree, {number(1), number(2)}), redco::Error);
  CHECK(redco::with_tensors(tree, {number(5)}).at("a").tensor().item<double>() == 5);
}

TEST_CASE("a missing key is named with the keys there are") {
  Tree tree;
  tree["weight"] = number(1);
  CHECK_THROWS_WITH_AS(tree.at("wight"), "no entry 'wight' in a dictionary with the keys: weight",
                       redco::Error);
  CHECK_THROWS_WITH_AS(tree.tensor(),
                       "expected a tensor in this place of the tree, found a dictionary",
                       redco::Error);
}

TEST_CASE("nearest finds a misspelt name and not a far one") {
  std::vector<std::string> names{"learning_rate", "weight_decay"};
  CHECK(redco::nearest("learning_rat", names) == "learning_rate");
  CHECK(redco::nearest("x", names) == "");
}
