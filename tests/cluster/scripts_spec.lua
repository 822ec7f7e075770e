-- Runs the scripts of this folder that test themselves, in several processes.
local program = require "program"
local testing = require "testing"

local here = assert(os.getenv "REDCO_SOURCE") .. "/tests/cluster"

--- Runs the scripts in turn in `n` processes.
local function test(n, scripts, environment)
  testing.test(("%s in %d processes"):format(scripts:gsub(" ", ", "), n), function()
    local words = {}
    for script in scripts:gmatch "%S+" do
      words[#words + 1] = ("'%s/%s.lua'%s"):format(here, script,
        script == "operators" and "" or (" '%s'"):format(program.folder))  -- its words are options
    end
    local command = "%s \"$REDCO_LUA\" --nproc %d '%s/../program/in_turn.lua' %s </dev/null"
    local code, out, err = program.shell(command:format(environment or "", n, here,
      table.concat(words, " -- ")))
    if code ~= 0 then error(("exit code %d\n%s%s"):format(code, out, err)) end
  end)
end

-- tensors.lua and families.lua look at the counters of a process, and so come first.
test(2, "tensors steps alone optimizers networks algorithms preference quantized precision")
test(2, "ranges operators collate data budgets model_budgets moves evaluate contrastive serve")
test(2, "families loading new_models rows whisper diffusion pictures torchscript batch")
test(2, "rl_language architectures")
test(4, "tensors steps alone data model_budgets architectures")
test(4, "families saving every_family quantized batch evaluate contrastive serve rl_language")
test(2, "copies", "REDCO_ONEDNN_PRODUCTS=1")
if testing.is_full then
  test(1, "algorithms")
  test(4, "optimizers networks algorithms preference precision ranges collate")
  test(4, "diffusion pictures torchscript")
  test(3, "copies")
end

program.remove_folder()
testing.finish()
