-- Runs the scripts of this folder that test themselves, in four processes.
-- four_processes_models_spec.lua runs those about models.
local program = require "program"
local test = require "scripts_in_processes"
local testing = require "testing"

-- tensors.lua looks at the counters of a process, and so comes first.
test(4, "tensors steps alone data context experts stages chunks quantized evaluate contrastive")
test(4, "serve rl_language context_generation")
if testing.is_full then
  test(4, "optimizers networks algorithms preference precision ranges collate")
end

program.remove_folder()
testing.finish()
