-- To save its part of a model, a process needs the memory of its share of the files, and that of
-- the largest tensor while it is gathered. Checks this.
local process_memory = require "process_memory"
local redco = require "redco"
local testing = require "testing"

local torch, tree = redco.torch, redco.tree
local deployer = redco.Deployer {
  seed = 1, n_model_shards = 2, zero = 3, workdir = arg[1] .. "/saving", verbose = false,
}

local model = redco.models.from_config({
  model_type = "llama", vocab_size = 6000, hidden_size = 1024, intermediate_size = 3072,
  num_hidden_layers = 2, num_attention_heads = 8, num_key_value_heads = 4,
}, { generator = torch.Generator(1) })
local trainer = redco.Trainer {
  deployer = deployer, params = model.params,
  collate_fn = function(rows)
    local ids = torch.stack(rows)
    return { input_ids = ids, labels = ids }
  end,
  loss_fn = function(_, _, params, batch) return model.loss(params, batch) end,
  optimizer = redco.optim.sgd { learning_rate = 0.1, momentum = 0.9 },
}
model.params = nil
local row = torch.arange(8)
trainer:setup_running_step { examples = { row, row, row, row }, per_device_batch_size = 2 }
collectgarbage()
collectgarbage()

process_memory.release()

testing.test("a process's share of what is saved, and no more than three largest tensors beside it",
  function()
    local whole, largest = 0, 0
    for _, leaf in ipairs(tree.leaves { trainer.params, trainer.state.opt_state }) do
      whole = whole + leaf:numel() * 4
      largest = math.max(largest, leaf:numel() * 4)
    end
    local refs = assert(io.open("/proc/self/clear_refs", "w"))
    refs:write "5"  -- the peak begins anew
    refs:close()
    local before = process_memory.bytes("status", "VmRSS")
    trainer:save_ckpt { ckpt_name = "a" }
    local taken = process_memory.bytes("status", "VmHWM") - before
    local share = whole / deployer.n_processes
    -- Freed memory is returned every 16 MiB; a sanitizer keeps it for a while.
    local slack = os.getenv "REDCO_SANITIZE" == "1" and 2 ^ 30 or 2 ^ 24 + 2 ^ 22
    assert(taken < share + 3 * largest + slack,
      ("%.0f MB for a share of %.0f MB"):format(taken / 1e6, share / 1e6))
    local loaded = tree.leaves(deployer:load_last_ckpt().params)
    for i, param in ipairs(tree.leaves(trainer.params)) do
      assert(torch.equal(param:full(), loaded[i]:full()))
    end
  end)

testing.finish()
