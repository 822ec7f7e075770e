-- evaluate.lua FOLDER: evaluates the jobs of FOLDER/jobs.json, for evaluate_peer.py.
local redco = require "redco"

local folder = arg[1]
local deployer = redco.Deployer { seed = 1, verbose = false }
local models = {}

local function opened(path)
  if not models[path] then
    models[path] = { redco.models.from_pretrained(path), redco.Tokenizer.from_pretrained(path) }
  end
  return unpack(models[path])
end

local list = {}
for i, job in ipairs(redco.data.json(folder .. "/jobs.json")) do
  local options = { deployer = deployer, tasks = { job.task }, bootstrap_iters = 2000 }
  options.model, options.tokenizer = opened(job.model)
  for name, value in pairs(job.options) do options[name] = value end
  local found, samples = redco.evaluate(options)
  local name = next(samples)
  list[i] = { groups = found.groups, results = found.results[name], samples = samples[name],
    n_samples = found["n-samples"][name], higher_is_better = found.higher_is_better[name] }
end

local file = assert(io.open(folder .. "/found.json", "w"))
file:write(require("redco.native").json_encode("the results", list))
file:close()
