-- Runs the scripts of this folder that test models, in four processes.
local program = require "program"
local test = require "scripts_in_processes"
local testing = require "testing"

-- families.lua looks at the counters of a process, and so comes first.
test(4, "families saving every_family model_budgets batch architectures context_models")
if testing.is_full then test(4, "diffusion pictures torchscript") end

program.remove_folder()
testing.finish()
