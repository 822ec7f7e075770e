--- Models of texts or of images alone that end in features: families whose calls return one vector
--- for each text or image. A tower is a table of facts of a family, with the keys
---   prefix: of the names of its parameters, "text_model."
---   add_parameters(c, add), new_tower(c): with names without the prefix. The latter returns
---     function(params, inputs, o, kept) -> hidden states [B, T, size], features [B, size]; the
---     inputs and outputs of all layers are appended to the list `kept`, if it is given
---   projection: the name of the layer behind the features in the class with projection, and
---     init(c) of its weight; or nil
local blocks = require "redco.models.blocks"

local tower = {}

--- Declares the parameters of a tower as a part of another model.
function tower.add_parameters(facts, c, add)
  facts.add_parameters(c, blocks.add_with_prefix(add, facts.prefix))
end

--- Returns the function of a tower as a part of another model.
function tower.new(facts, c)
  local run = facts.new_tower(c)
  return function(params, inputs, o, kept)
    return run(blocks.with_prefix(params, facts.prefix), inputs, o, kept)
  end
end

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
  local name, init = facts.projection.name, facts.projection.init
  local result = { architecture = family.architecture .. "WithProjection", task = "projection" }

  function result.add_parameters(c, add)
    family.add_parameters(c, add)
    blocks.add_linear(add, name, c.hidden_size, c.projection_dim, init(c), false)
  end

  function result.new_functions(c)
    return functions_of(tower.new(facts, c), function(params, features, o)
      return blocks.linear(params, name, features, o)
    end)
  end

  return setmetatable(result, { __index = family })
end

--- Returns the family of a tower alone.
function tower.family(facts)
  local family = { task = "features", base_model_prefix = facts.prefix:gsub("%.$", ""),
    tower = facts }

  function family.add_parameters(c, add) tower.add_parameters(facts, c, add) end

  function family.new_functions(c) return functions_of(tower.new(facts, c)) end

  setmetatable(family, { __index = facts })
  family.variants = { family, facts.projection and with_projection(facts, family) }
  return family
end

return tower
