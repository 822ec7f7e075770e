--- The projection of CLAP's features: two linear layers with an activation between them.
local blocks = require "redco.models.layers.blocks"

--- Returns the deviation of new weights of CLAP or a part of it.
local function deviation(c)
  return c.hidden_size ^ -0.5 * (2 * c.num_hidden_layers) ^ -0.5 * c.initializer_factor
end

--- Returns the projection (tower.lua) named `name`.
local function new_projection(name)
  return {
    -- `whole` is the configuration that says how new weights are drawn, if not c.
    add = function(c, add, whole)
      local normal = blocks.normal(deviation(whole or c))
      blocks.add_linear(add, name .. ".linear1", c.hidden_size, c.projection_dim, normal)
      blocks.add_linear(add, name .. ".linear2", c.projection_dim, c.projection_dim, normal)
    end,
    new = function(c)
      local apply = blocks.new_mlp(blocks.activation(c.model_type, c.projection_hidden_act),
        { ".linear1", ".linear2" })
      return function(params, features, o) return apply(params, name, features, o) end
    end,
  }
end

return { new = new_projection, deviation = deviation }
