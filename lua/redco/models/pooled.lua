--- The functions of text models without a head: a call returns hidden states, or one vector for
--- each text.
local fail = require "redco.fail"
local names_of = require "redco.names_of"
local pooling = require "redco.models.pooling"

--- Sets them. `read_options` reads the options of a call: those of hidden_states, and pooling.
return function(model, read_options)
  local family, kinds = model.family, {}
  for name, pool in pairs(pooling) do
    kinds[name] = function(_, hidden, inputs) return pool(hidden, inputs.attention_mask) end
  end
  kinds.pooler = family.new_pooler and family.new_pooler(model.config)

  local function check(kind, inputs)
    if not kinds[kind] then
      fail("model: pooling = %s is unknown to the %s; expected %s", kind, family.architecture,
        table.concat(names_of(kinds), ", "))
    end
    if inputs.segment_ids then
      fail("model: pooling = %s returns one vector for each row, and rows with segment_ids have "
        .. "several sequences", kind)
    end
  end

  function model.output(params, inputs, options)
    local o = read_options(options)
    if o.pooling ~= nil then check(o.pooling, inputs) end
    local hidden, more = model.hidden_states(params, inputs,
      { train = o.train, rng = o.rng, cache = o.cache })
    if not o.pooling then return hidden, more end
    return kinds[o.pooling](params, hidden, inputs, o)
  end

  model.logits = nil

  function model.loss()
    fail("%s: it has no loss, as it returns features", family.architecture)
  end
end
