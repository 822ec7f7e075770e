--- Models of texts, images or sounds alone that end in features: families whose calls return one
--- vector for each. A tower is a table of facts of a family, with the keys
---   prefix: of the names of its parameters, "text_model."; also of those of the class without
---     projection, unless own_prefix is another
---   add_parameters(c, add), new_tower(c): with names without the prefix. The latter returns
---     function(params, inputs, o, kept) -> hidden states [B, T, size], features [B, size]; the
---     inputs and outputs of all layers are appended to the list `kept`, if it is given
---   projection: of the class with projection, or nil: the layers behind the features, as add(c,
---     add) and new(c), which returns function(params, features, o)
local blocks = require "redco.models.layers.blocks"

local tower = {}

--- Returns a projection that is one linear layer. init(c) initialises its weight.
function tower.linear_projection(name, init)
  return {
    name = name,
    add = function(c, add)
      blocks.add_linear(add, name, c.hidden_size, c.projection_dim, init(c), false)
    end,
    new = function()
      return function(params, features, o) return blocks.linear(params, name, features, o) end
    end,
  }
end

local function add_parameters(facts, prefix, c, add)
  facts.add_parameters(c, blocks.add_with_prefix(add, prefix))
end

local function new(facts, prefix, c)
  local run = facts.new_tower(c)
  return function(params, inputs, o, kept)
    return run(blocks.with_prefix(params, prefix), inputs, o, kept)
  end
end

--- Declares the parameters of a tower as a part of another model.
function tower.add_parameters(facts, c, add) add_parameters(facts, facts.prefix, c, add) end

--- Returns the function of a tower as a part of another model.
function tower.new(facts, c) return new(facts, facts.prefix, c) end

local function functions_of(run, project)
  return {
    output = function(params, inputs, o)
      local _, features = run(params, inputs, o)
      return project and project(params, features, o) or features
    end,
    hidden_states = function(params, inputs, o)
      local kept = {}
      local x, features = run(params, inputs, o, kept)
      return x, kept, project and project(params, features, o) or features
    end,
  }
end

-- The class with a projection of the features.
local function with_projection(facts, family)
  local own = facts.projection
  local result = { architecture = family.architecture .. "WithProjection", task = "projection",
    base_model_prefix = facts.prefix:gsub("%.$", "") }

  function result.add_parameters(c, add)
    tower.add_parameters(facts, c, add)
    own.add(c, add)
  end

  function result.new_functions(c) return functions_of(tower.new(facts, c), own.new(c)) end

  return setmetatable(result, { __index = family })
end

--- Returns the family of a tower alone.
function tower.family(facts)
  local prefix = facts.own_prefix or facts.prefix
  local family = { task = "features", base_model_prefix = prefix:gsub("%.$", ""), tower = facts }

  function family.add_parameters(c, add) add_parameters(facts, prefix, c, add) end

  function family.new_functions(c) return functions_of(new(facts, prefix, c)) end

  setmetatable(family, { __index = facts })
  family.variants = { family, facts.projection and with_projection(facts, family) }
  return family
end

return tower
