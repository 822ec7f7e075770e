-- Runs the scripts of this folder that test models, in two processes.
local program = require "program"
local test = require "scripts_in_processes"
local testing = require "testing"

-- families.lua looks at the counters of a process, and so comes first.
test(2, "families loading new_models rows model_budgets whisper diffusion pictures torchscript")
test(2, "batch architectures context_models")

program.remove_folder()
testing.finish()
