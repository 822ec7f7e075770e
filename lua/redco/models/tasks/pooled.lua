--- The functions of text models without a head: a call returns hidden states, or one vector for
--- each text.
local dense = require "redco.models.sentence_dense"
local fail = require "redco.fail"
local names_of = require "redco.names_of"
local pooling = require "redco.models.tasks.pooling"
local sentence_pooling = require "redco.models.sentence_pooling"
local torch = require "redco.torch"

--- Sets them. `read_options` reads the options of a call: those of hidden_states, and pooling.
--- Without it `model.sentence_pooling` says what a call returns: see sentence_pooling.lua.
return function(model, read_options)
  local family, kinds = model.family, {}
  for name, pool in pairs(pooling) do
    kinds[name] = function(_, hidden, inputs) return pool(hidden, inputs.attention_mask) end
  end
  kinds.pooler = family.new_pooler and family.new_pooler(model.config)

  local function check(kind, inputs)
    if not kinds[kind] then
      fail("model: pooling = %s is unknown to the %s; expected none, %s", kind, family.architecture,
        table.concat(names_of(kinds), ", "))
    end
    if inputs.segment_ids then
      fail("model: pooling = %s returns one vector for each row, and rows with segment_ids have "
        .. "several sequences", kind)
    end
  end

  function model.output(params, inputs, options)
    local o = read_options(options)
    local own = o.pooling == nil and model.sentence_pooling
    local chosen = own and own.kinds or o.pooling ~= "none" and { o.pooling } or {}
    for _, kind in ipairs(chosen) do check(kind, inputs) end
    local hidden, more = model.hidden_states(params, inputs,
      { train = o.train, rng = o.rng, cache = o.cache })
    if #chosen == 0 then
      if own then return dense.apply(own.steps, params, hidden, o) end
      return hidden, more
    end
    local vectors = {}
    for i, kind in ipairs(chosen) do vectors[i] = kinds[kind](params, hidden, inputs, o) end
    local vector = #vectors == 1 and vectors[1] or torch.cat(vectors, -1)
    return own and dense.apply(own.steps, params, vector, o) or vector
  end

  function model.set_sentence_pooling(options)
    local c = model.config
    local size = c[family.size_key] or c.word_embed_proj_dim or c.hidden_size or c.n_embd
    model.sentence_pooling = sentence_pooling.of(options, size, model.sentence_pooling)
  end

  model.logits = nil

  function model.loss()
    fail("%s: it has no loss, as it returns features", family.architecture)
  end
end
