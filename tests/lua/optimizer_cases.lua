--- One of each optimizer, by name, for parameters of which some are matrices.
local optim = require("redco").optim

local function matrices(_, param) return param.ndim == 2 end
local function rate(step) return 0.01 * (step + 1) end

return {
  adamw = function() return optim.adamw { learning_rate = rate, mask = "*.weight" } end,
  adamw8bit = function()
    return optim.adamw8bit { learning_rate = rate, mask = "*.weight", min_8bit_size = 256 }
  end,
  adam = function() return optim.adam { learning_rate = 0.01, weight_decay = 0.1 } end,
  sgd = function()
    return optim.sgd { learning_rate = 0.1, momentum = 0.9, nesterov = true }
  end,
  rmsprop = function()
    return optim.rmsprop { learning_rate = 0.01, momentum = 0.9, centered = true,
      weight_decay = 0.1, mask = "*.weight" }
  end,
  adagrad = function()
    return optim.adagrad { learning_rate = 0.1, lr_decay = 0.1, weight_decay = 0.1 }
  end,
  lion = function() return optim.lion { learning_rate = 0.01, weight_decay = 0.1 } end,
  lamb = function() return optim.lamb { learning_rate = 0.05, weight_decay = 0.1 } end,
  adafactor = function() return optim.adafactor { learning_rate = 0.05, weight_decay = 0.1 } end,
  muon = function()
    return optim.multi { { matrices, optim.muon { learning_rate = 0.02 } },
      { "*", optim.adamw { learning_rate = 0.02 } } }
  end,
}
