--- `redco-lua evaluate`: the scores of a model on tasks.
local evaluate = require "redco.evaluate"
local native = require "redco.native"
local open = require "redco.talk.writer"
local results = require "redco.evaluate.results"

--- Prints the scores of the model of a path on the tasks of other paths. `o` has the command's
--- flags.
return function(path, tasks, o)
  local opened = open(path, o)
  local deployer = native.Deployer { seed = 0, verbose = false, n_model_shards = o.n_model_shards }
  opened:load()
  local found = evaluate {
    deployer = deployer, model = opened.model, params = opened.params,
    tokenizer = opened.tokenizer, tasks = tasks, num_fewshot = o.num_fewshot, limit = o.limit,
    batch_size = o.batch_size, apply_chat_template = o.apply_chat_template, seed = o.seed,
    max_length = o.max_length, output = o.output, log_samples = o.log_samples, model_name = path,
  }
  if deployer.process_id == 0 then print(results.table_of(found)) end
end
