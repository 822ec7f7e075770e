-- Files of earlier versions: a run resumes, and adapters are loaded. tests/engine/formats_test.cpp
-- opens each format alone; tests/tools/make_format_cases.lua wrote the files.
local program = require "program"
local redco = require "redco"
local testing = require "testing"

local torch, tree = redco.torch, redco.tree
local test, expect_equal, expect_close = testing.test, testing.expect_equal, testing.expect_close

local tests = os.getenv "REDCO_SOURCE" .. "/tests"

for format = 1, 1 do
  local folder = tests .. "/cases/formats/" .. format

  test("a run of format " .. format .. " resumes with its options and ends as it did", function()
    local code, _, err = program.shell(("cp -r %s/run run && \"$REDCO_LUA\" %s/lua/format_run.lua "
      .. "--config=run/config.toml --workdir=run"):format(folder, tests))
    assert(code == 0, err)
    local deployer = redco.Deployer { seed = 1, verbose = false }
    local ckpt, info = deployer:load_ckpt { ckpt_dir = program.folder .. "/run/ckpts/step_6" }
    local expected, its_info = deployer:load_ckpt { ckpt_dir = folder .. "/after" }
    for _, name in ipairs { "params", "opt_state" } do
      local leaves, others = tree.leaves(ckpt[name]), tree.leaves(expected[name])
      expect_equal(table.concat(tree.paths(ckpt[name]), " "),
        table.concat(tree.paths(expected[name]), " "))
      for i, leaf in ipairs(leaves) do expect_close(leaf, others[i], 1e-5, 1e-6) end
    end
    for _, field in ipairs { "step", "epoch_idx", "n_examples", "trainer_seed" } do
      expect_equal(info[field], its_info[field])
    end
    expect_equal(program.read(program.folder .. "/run/config.toml"):gsub("workdir = [^\n]*", ""),
      program.read(folder .. "/run/config.toml"):gsub("workdir = [^\n]*", ""))
  end)

  test("adapters of format " .. format, function()
    local layer = redco.lora.from_pretrained(folder .. "/adapter",
      { layer = redco.nn.Linear(3, 2) }).layer
    expect_close(layer.lora_A.weight, torch.arange(6):view(2, 3) / 4, 0, 0)
    expect_close(layer.lora_B.weight, torch.arange(4):view(2, 2) / 4, 0, 0)
    local plain = redco.nn.linear({ weight = layer.weight, bias = layer.bias }, torch.ones { 1, 3 })
    -- lora_alpha / r = 3, and A x = { 0.75, 3 }.
    expect_close(redco.nn.linear(layer, torch.ones { 1, 3 }) - plain,
      torch.tensor { { 3 * 0.75, 3 * (0.5 * 0.75 + 0.75 * 3) } }, 1e-5, 1e-5)
  end)
end

program.remove_folder()
testing.finish()
