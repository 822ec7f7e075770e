-- Runs the scripts of this folder that test themselves, in two processes (and one and three).
-- two_processes_models_spec.lua runs those about models.
local program = require "program"
local test = require "scripts_in_processes"
local testing = require "testing"

-- tensors.lua looks at the counters of a process, and so comes first.
test(2, "tensors steps alone optimizers networks algorithms preference quantized precision")
test(2, "ranges operators collate data budgets moves evaluate contrastive serve")
test(2, "rl_language context context_generation experts stages chunks")
test(2, "copies", "REDCO_ONEDNN_PRODUCTS=1")
if testing.is_full then
  test(1, "algorithms")
  test(3, "copies")
end

program.remove_folder()
testing.finish()
