-- Runs the scripts of this folder that test themselves, each in several processes; with
-- REDCO_TEST_FULL=1 those marked `full` too.
local program = require "program"
local testing = require "testing"

local here = assert(os.getenv "REDCO_SOURCE") .. "/tests/cluster"

for _, run in ipairs {
  { 2, "tensors" }, { 4, "tensors" },
  { 2, "steps" }, { 4, "steps" }, { 2, "alone" }, { 4, "alone" },
  { 2, "optimizers" }, { 4, "optimizers", full = true },
  { 2, "networks" }, { 4, "networks", full = true },
  { 1, "algorithms", full = true }, { 2, "algorithms" }, { 4, "algorithms", full = true },
  { 2, "precision" }, { 4, "precision", full = true },
  { 2, "ranges" }, { 4, "ranges", full = true }, { 2, "operators", takes_options = true },
  { 2, "collate" }, { 4, "collate", full = true }, { 2, "data" }, { 4, "data" },
  { 2, "budgets" }, { 2, "model_budgets" },
  { 4, "model_budgets" }, { 2, "moves" },
  { 2, "families" }, { 4, "families" }, { 2, "loading" }, { 4, "saving" },
  { 2, "new_models" }, { 4, "every_family" }, { 2, "rows" }, { 2, "whisper" },
  { 2, "diffusion" }, { 4, "diffusion", full = true }, { 2, "pictures" },
  { 4, "pictures", full = true },
  { 2, "torchscript" }, { 4, "torchscript", full = true },
  { 2, "copies", environment = "REDCO_ONEDNN_PRODUCTS=1" }, { 3, "copies", full = true },
} do
  local n, script = unpack(run)
  if run.full and not testing.is_full then goto continue end
  testing.test(("%s.lua in %d processes"):format(script, n), function()
    local command = ("%s \"$REDCO_LUA\" --nproc %d '%s/%s.lua' %s </dev/null"):format(
      run.environment or "", n, here, script,
      run.takes_options and "" or "'" .. program.folder .. "'")
    local code, out, err = program.shell(command)
    if code ~= 0 then error(("exit code %d\n%s%s"):format(code, out, err)) end
  end)
  ::continue::
end

program.remove_folder()
testing.finish()
