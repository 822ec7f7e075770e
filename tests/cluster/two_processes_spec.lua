-- Runs the scripts of this folder that test themselves, in two processes (and one and three).
local program = require "program"
local test = require "scripts_in_processes"
local testing = require "testing"

-- tensors.lua and families.lua look at the counters of a process, and so come first.
test(2, "tensors steps alone optimizers networks algorithms preference quantized precision")
test(2, "ranges operators collate data budgets model_budgets moves evaluate contrastive serve")
test(2, "families loading new_models rows whisper diffusion pictures torchscript batch")
test(2, "rl_language architectures context experts stages")
test(2, "copies", "REDCO_ONEDNN_PRODUCTS=1")
if testing.is_full then
  test(1, "algorithms")
  test(3, "copies")
end

program.remove_folder()
testing.finish()
