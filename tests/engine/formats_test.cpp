// Files in the formats of this program: those of every number are read, newer ones are named.
#include <redco/checkpoint.h>
#include <redco/cluster.h>
#include <redco/deployer.h>
#include <redco/formats.h>
#include <redco/safetensors.h>
#include <redco/token_file.h>

#include "checkpoints.h"
#include "files.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <functional>

namespace fs = std::filesystem;
using redco::Tree;

namespace {

// The trees that tests/tools/make_format_cases.lua writes.
Tree params() {
  return Tree::Dict{
      {"layer", Tree::Dict{{"weight", at::arange(6).view({2, 3}).to(at::kFloat) / 4}}},
      {"list", Tree::List{at::tensor({1, 0}).to(at::kBool), at::arange(3).to(at::kBFloat16)}}};
}

void check_opt_state(const Tree& tree) {
  CHECK(tree.as<Tree::Dict>().size() == 4);
  CHECK(tree.at("step").tensor().item<int64_t>() == 7);
  CHECK(tree.at("name").as<std::string>() == "adam");
  CHECK(tree.at("rate").as<double>() == 0.1);
  CHECK(std::isnan(tree.at("missing").as<double>()));
}

void check_newer(const std::string& path, const std::function<void()>& read) {
  try {
    read();
    FAIL("it was read");
  } catch (const redco::UnknownFormat& error) {
    check_contains(error.what(), {path, "it was written by a newer redco-lua"});
  }
}

void change(const std::string& path, const std::string& part, const std::string& by) {
  std::string text = read_bytes(path);
  size_t at = text.find(part);
  REQUIRE(at != std::string::npos);
  write_bytes(path, text.replace(at, part.size(), by));
}

// info.json with another field, and the sum that fits.
void change_info(const std::string& ckpt, const std::function<void(Tree::Dict&)>& edit) {
  std::string path = ckpt + "/info.json";
  Tree info = redco::tree_from_json("", read_bytes(path));
  info.as<Tree::Dict>().erase("xxh3");
  edit(info.as<Tree::Dict>());
  write_bytes(path, sealed(redco::json_from_tree("", info)));
}

}  // namespace

TEST_CASE("files of every earlier format are read") {
  int64_t n_formats = 0;
  for (const auto& item : fs::directory_iterator(TESTS_FOLDER "/cases/formats")) {
    const std::string folder = item.path();
    INFO("in ", folder);
    ++n_formats;
    if (fs::exists(folder + "/checkpoint")) {
      redco::Checkpoint checkpoint = redco::load_checkpoint(folder + "/checkpoint", one_process());
      check_equal(checkpoint.params, params());
      check_opt_state(checkpoint.opt_state);
      CHECK(checkpoint.custom_state.at("seen").as<int64_t>() == 12);
      CHECK(checkpoint.info.at("epoch").as<int64_t>() == 3);
      check_equal(redco::load_checkpoint_info(folder + "/checkpoint"), checkpoint.info);
    }
    if (fs::exists(folder + "/tree.safetensors")) {
      Tree tree = redco::load_tree(folder + "/tree.safetensors");
      check_equal(tree.at("params"), params());
      check_opt_state(tree.at("opt_state"));
    }
    for (const char* name : {"tokens_uint16", "tokens_uint32"}) {
      std::string path = folder + "/" + name + ".bin";
      if (!fs::exists(path)) continue;
      redco::TokenFile tokens(path);
      CHECK(at::equal(tokens.read(0, tokens.size()), at::arange(100, 110)));
    }
    if (fs::exists(folder + "/cluster.toml"))
      CHECK(redco::ClusterSpec::read(folder + "/cluster.toml").text() ==
            "2 x 8 H100-80G (nvlink4, ib-400)");
  }
  CHECK(n_formats == 1);
}

TEST_CASE("a file of a newer format is not called damaged") {
  Folder folder;
  fs::copy(TESTS_FOLDER "/cases/formats/1", folder.path,
           fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  const std::string ckpt = folder / "checkpoint", cluster = folder / "cluster.toml";
  // It may describe its files in another way.
  change_info(ckpt, [](Tree::Dict& info) {
    info["format"] = 2;
    info["files"] = Tree::List{"params.safetensors"};
  });
  check_newer(ckpt, [&] { redco::load_checkpoint(ckpt, one_process()); });
  check_newer(ckpt, [&] { redco::load_checkpoint_info(ckpt); });
  change_info(ckpt, [](Tree::Dict& info) { info.erase("format"); });
  check_contains(message_of([&] { redco::load_checkpoint_info(ckpt); }),
                 "its field format is missing, expected 1");

  redco::save_safetensors(folder / "tree", {{"a", at::zeros({1})}},
                          {{"redco.tree", R"({"format":2,"leaves":["a"]})"}});
  check_newer(folder / "tree", [&] { redco::load_tree(folder / "tree"); });

  change(cluster, "format = 1", "format = 2\nracks = 3");
  check_newer(cluster, [&] { redco::ClusterSpec::read(cluster); });

  const std::string tokens = folder / "tokens_uint16.bin";
  std::string bytes = read_bytes(tokens);
  bytes[4] = 2;
  write_bytes(tokens, bytes);
  check_newer(tokens, [&] { redco::TokenFile{tokens}; });
}

TEST_CASE("a run does not resume before a checkpoint of a newer program, and renames nothing") {
  Folder folder;
  const std::string ckpts = folder / "ckpts";
  fs::create_directory(ckpts);
  for (const char* name : {"/step_2", "/step_4"})
    fs::copy(TESTS_FOLDER "/cases/formats/1/checkpoint", ckpts + name, fs::copy_options::recursive);
  change_info(ckpts + "/step_4", [](Tree::Dict& info) { info["format"] = 2; });
  redco::Deployer deployer({.verbose = false, .workdir = folder.path.string()});
  check_newer("step_4/info.json", [&] { deployer.load_last_ckpt(); });
  write_bytes(ckpts + "/last_ckpt.txt", "step_4\n");
  check_newer("step_4/info.json", [&] { deployer.load_last_ckpt(); });
  CHECK(fs::exists(ckpts + "/step_4"));
}
