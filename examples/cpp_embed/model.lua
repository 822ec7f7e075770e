-- The model, and how it is trained: which label does a line of text have? The program calls
-- `new_params`, `classify`, `train` and `learned`. A restricted engine, which has no Trainer, can
-- run all but `train`.
local redco = require "redco"
local torch, nn = redco.torch, redco.nn

local n_labels, n_rows, width, length = 16, 4096, 32, 80

-- The groups of three letters of a text, hashed to rows of the embedding; 0 fills up.
local function row_numbers(text)
  local numbers = {}
  text = (" " .. text:lower() .. " "):sub(1, length + 2)
  for i = 1, length do
    local a, b, c = text:byte(i, i + 2)
    numbers[i] = c and (a * 961 + b * 31 + c) % (n_rows - 1) + 1 or 0
  end
  return numbers
end

-- The mean of a text's rows, then a linear layer: [batch, length] -> [batch, n_labels].
local function logits(params, rows)
  local is_there = rows:ne(0):unsqueeze(-1):float()
  local sum = (nn.embedding(params.embedding, rows) * is_there):sum(1)
  return nn.linear(params.head, sum / is_there:sum(1):clamp { min = 1 })
end

-- Globals are what the program sees.
local function export(name, f) rawset(_G, name, f) end

export("new_params", function()
  local options = { generator = torch.Generator(1) }
  return {
    embedding = nn.Embedding(n_rows, width, options), head = nn.Linear(width, n_labels, options),
  }
end)

export("classify", function(params, text)
  local rows = torch.tensor { row_numbers(text) }
  return torch.no_grad(function() return torch.softmax(logits(params, rows)[0], -1) end)
end)

local trainer

export("train", function(params, examples, n_epochs)
  trainer = redco.Trainer {
    deployer = redco.Deployer { seed = 42 },
    params = params,
    collate_fn = function(batch)
      local rows, labels = {}, {}
      for i, example in ipairs(batch) do
        rows[i], labels[i] = row_numbers(example.text), example.label
      end
      return { rows = torch.tensor(rows), labels = torch.tensor(labels) }
    end,
    loss_fn = function(_, _, p, batch)
      return nn.cross_entropy(logits(p, batch.rows), batch.labels)
    end,
    optimizer = redco.optim.adamw { learning_rate = 1e-2 },
  }
  trainer:fit { train_examples = examples, per_device_batch_size = 16, n_epochs = n_epochs }
end)

export("learned", function() return trainer.params end)
