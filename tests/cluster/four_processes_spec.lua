-- Runs the scripts of this folder that test themselves, in four processes.
local program = require "program"
local test = require "scripts_in_processes"
local testing = require "testing"

-- tensors.lua and families.lua look at the counters of a process, and so come first.
test(4, "tensors steps alone data model_budgets architectures context experts stages")
test(4, "families saving every_family quantized batch evaluate contrastive serve rl_language")
if testing.is_full then
  test(4, "optimizers networks algorithms preference precision ranges collate")
  test(4, "diffusion pictures torchscript")
end

program.remove_folder()
testing.finish()
